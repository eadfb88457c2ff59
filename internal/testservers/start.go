package testservers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// What the servers are started with, and clients have to use. The Azure pair is
// the public one of the emulator.
const (
	accessKey    = "shardctl-test"
	secretKey    = "shardctl-test-secret"
	azureAccount = "devstoreaccount1"
	azureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// startTimeout bounds the start of a server on a busy machine.
const startTimeout = time.Minute

// Server is a server that is running.
type Server struct {
	Kind Kind
	// Addr is where it listens, an address of 127.0.0.1 with a port.
	Addr string

	mu      sync.Mutex
	buckets int
}

// Start installs a server if need be, starts it, with some more arguments of its
// own, and stops it at the end of the test. Where it cannot be installed the test
// is skipped, or fails if RequireVariable asks for that.
func Start(t testing.TB, kind Kind, more ...string) *Server {
	t.Helper()
	path, err := Install(t.Context(), kind)
	if err != nil {
		if os.Getenv(RequireVariable) == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for attempt := 0; ; attempt++ { // another process can take the port first
		s, err := start(t, kind, path, more)
		if err == nil {
			return s
		}
		if attempt == 2 {
			t.Fatal(err)
		}
	}
}

func start(t testing.TB, kind Kind, path string, more []string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	addr := "127.0.0.1:" + port
	folder := t.TempDir()
	var args []string
	switch kind {
	case Versitygw:
		args = []string{"--port", addr, "--keep-alive", "--quiet", "posix", folder}
	case GoFakeS3:
		args = []string{"-host", addr, "-backend", "memory", "-quiet"}
	case FakeGCS:
		args = []string{"-scheme", "http", "-host", "127.0.0.1", "-port", port, "-public-host", addr, "-backend", "memory", "-log-level", "error"}
	case Azurite:
		args = []string{"--silent", "--blobHost", "127.0.0.1", "--blobPort", port, "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"}
	case Etcd:
		args = []string{"-addr", addr, "-data", folder}
	case Dynalite:
		args = []string{"--host", "127.0.0.1", "--port", port, "--createTableMs", "0", "--deleteTableMs", "0"}
	}
	cmd := exec.Command(path, append(args, more...)...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY_ID="+accessKey, "ROOT_SECRET_ACCESS_KEY="+secretKey)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	DieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", kind, err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	stop := func() {
		cmd.Process.Kill()
		<-exited
	}

	deadline := time.Now().Add(startTimeout)
	for {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
			break
		}
		select {
		case <-exited:
			return nil, fmt.Errorf("start %s: it ended: %s", kind, last(output.Bytes(), 2000))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("start %s: not ready after %v: %s", kind, startTimeout, last(output.Bytes(), 2000))
		}
	}
	t.Cleanup(stop)
	return &Server{Kind: kind, Addr: addr}, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// Environ returns the variables that a client of the server needs, under the
// names that Sleet reads too (COMPATIBILITY S28). Nothing in them leads off
// this machine.
func (s *Server) Environ() map[string]string { return s.EnvironAt(s.Addr) }

// EnvironAt is Environ for a client that reaches the server through another
// address, as of a proxy.
func (s *Server) EnvironAt(addr string) map[string]string {
	switch s.Kind {
	case FakeGCS:
		return map[string]string{"STORAGE_EMULATOR_HOST": addr}
	case Etcd:
		return map[string]string{"ETCDCTL_ENDPOINTS": addr}
	case Dynalite:
		return map[string]string{
			"AWS_ACCESS_KEY_ID":         accessKey,
			"AWS_SECRET_ACCESS_KEY":     secretKey,
			"AWS_REGION":                "us-east-1",
			"AWS_ENDPOINT_URL_DYNAMODB": "http://" + addr,
			"AWS_ALLOW_HTTP":            "true",
			"AWS_EC2_METADATA_DISABLED": "true",
		}
	case Azurite:
		return map[string]string{
			"AZURE_STORAGE_USE_EMULATOR": "true",
			"AZURITE_BLOB_STORAGE_URL":   "http://" + addr,
		}
	}
	return map[string]string{
		"AWS_ACCESS_KEY_ID":         accessKey,
		"AWS_SECRET_ACCESS_KEY":     secretKey,
		"AWS_DEFAULT_REGION":        "us-east-1",
		"AWS_ENDPOINT":              "http://" + addr,
		"AWS_ALLOW_HTTP":            "true",
		"AWS_EC2_METADATA_DISABLED": "true",
	}
}

// NewBucket makes an empty bucket and returns its URL, to be opened with
// Environ. Not every server has buckets: see ObjectStores.
func (s *Server) NewBucket(t testing.TB) (url string) {
	t.Helper()
	s.mu.Lock()
	s.buckets++
	name := fmt.Sprintf("bucket-%d", s.buckets)
	s.mu.Unlock()
	if err := s.makeBucket(t.Context(), name); err != nil {
		t.Fatalf("make bucket %s on %s: %v", name, s.Kind, err)
	}
	return s.scheme() + "://" + name
}

// MissingBucket returns the URL of a bucket that does not exist.
func (s *Server) MissingBucket() (url string) { return s.scheme() + "://no-such-bucket" }

func (s *Server) scheme() string {
	switch s.Kind {
	case FakeGCS:
		return "gs"
	case Azurite:
		return "az"
	}
	return "s3"
}

func (s *Server) makeBucket(ctx context.Context, name string) error {
	endpoint := "http://" + s.Addr
	switch s.Kind {
	case FakeGCS:
		body := strings.NewReader(fmt.Sprintf(`{"name":%q}`, name))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/storage/v1/b", body)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", resp.Status)
		}
		return nil
	case Azurite:
		cred, err := container.NewSharedKeyCredential(azureAccount, azureKey)
		if err != nil {
			return err
		}
		client, err := container.NewClientWithSharedKeyCredential(endpoint+"/"+azureAccount+"/"+name, cred, nil)
		if err != nil {
			return err
		}
		_, err = client.Create(ctx, nil)
		return err
	}
	client := s3.New(s3.Options{
		BaseEndpoint: &endpoint, UsePathStyle: true, Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
	_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(name)})
	return err
}
