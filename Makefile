# The linter is pinned here and nowhere else.
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

PLATFORMS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
MODULES   = . bench test/kubernetes

.PHONY: help build servers test race test-peers lint fmt cross generate fuzz bench check

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build ./shardctl
	go build -o shardctl ./cmd/shardctl

servers: ## install the storage servers that tests run against, once
	-go run ./internal/testservers/install

test: servers ## run all tests; those whose server cannot be installed are skipped
	@for m in $(MODULES); do (cd $$m && go test ./...) || exit 1; done

# Scripts and docs run the commands as processes of their own, which is slow under the
# detector and shows it nothing that the other tests do not.
race: servers ## run all tests but scripts under the race detector
	go test -race -skip '^(TestScripts|TestDocs)$$' ./...

test-peers: ## test beside the real Sleet and MenteDB, which cargo builds once, for minutes (PEERSFLAGS='-seeds 1000')
	cd test/peers && go test -tags peers -timeout 60m $(PEERSFLAGS)

lint: ## vet and the pinned linter
	@for m in $(MODULES) test/etcd; do (cd $$m && go vet -tags peers ./... && go run $(STATICCHECK) -tags peers ./...) || exit 1; done

fmt: ## fail where gofmt would change something
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }

cross: ## build for all platforms, and check the tests of those that differ most
	@for p in $(PLATFORMS); do \
		echo "$$p"; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 go build ./... || exit 1; \
	done
	@for os in darwin windows; do \
		echo "$$os, tests"; \
		GOOS=$$os GOARCH=amd64 CGO_ENABLED=0 go vet ./... || exit 1; \
	done

generate: ## rewrite completions, command reference, man pages, schemas, example snapshots, and the output shown in docs
	go test ./cmd/shardctl -run 'TestGeneratedFiles|TestDocs' -update

fuzz: ## run each fuzz target for a while (FUZZTIME=10s)
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZTIME),10s) $$pkg || exit 1; \
		done; \
	done

bench: ## measure beside plain loops and other libraries
	cd bench && go run .

check: fmt lint test race cross ## everything that must pass
