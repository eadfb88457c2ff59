module github.com/shardctl/shardctl

go 1.26
