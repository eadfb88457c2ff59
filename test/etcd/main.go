// Command etcd is an etcd server of one member, for tests: etcd's own program
// cannot be installed by the go command, since its module has replacements.
//
// Its ticks are ten times as fast as usual, so that a lease may be of one second,
// and it does not wait for the disk.
package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:2379", "`address` of loopback to listen on")
	data := flag.String("data", "", "`folder` for its data")
	cert := flag.String("cert", "", "certificate `file`, for TLS")
	key := flag.String("key", "", "key `file` of the certificate")
	clientCA := flag.String("client-ca", "", "certificate `file` of the authority that clients must be known to")
	flag.Parse()
	if err := serve(*addr, *data, *cert, *key, *clientCA); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(addr, data, cert, key, clientCA string) error {
	scheme := "http"
	cfg := embed.NewConfig()
	if cert != "" {
		scheme = "https"
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = cert, key
		cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = clientCA, clientCA != ""
	}
	client := []url.URL{{Scheme: scheme, Host: addr}}
	peer := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}} // nobody comes: there is one member
	cfg.Name, cfg.Dir = "test", data
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.LogLevel = "panic" // what goes wrong shows in the tests
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = true
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer server.Close()
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, os.Interrupt)
	select {
	case err := <-server.Err():
		return err
	case <-interrupt:
		return nil
	}
}
