package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/internal/nearest"
)

// Service is a background service that nodes run for databases. The order of
// the constants is the order in which Sleet lists services.
type Service uint8

const (
	// GC collects garbage; one node runs it for each database.
	GC Service = iota
	// CompactorCoordinator plans compactions; one node runs it for each database.
	CompactorCoordinator
	// CompactionWorkers execute compactions; as many nodes as the setting count
	// says run them for each database.
	CompactionWorkers
	// Mirror copies a database elsewhere; one node runs it for each database and
	// applied target.
	Mirror

	numServices = iota
)

var (
	serviceNames   = [numServices]string{"gc", "compactor-coordinator", "compaction-workers", "mirror"}
	serviceLetters = [numServices]byte{'g', 'c', 'w', 'm'}
)

// Services returns all services in their canonical order.
func Services() []Service { return []Service{GC, CompactorCoordinator, CompactionWorkers, Mirror} }

// ServiceNames returns the names of all services in their canonical order.
func ServiceNames() []string { return slices.Clone(serviceNames[:]) }

// ParseService returns the service called name. Names are kebab-case only (S8).
func ParseService(name string) (Service, error) {
	if i := slices.Index(serviceNames[:], name); i >= 0 {
		return Service(i), nil
	}
	return 0, fmt.Errorf("unknown service %q%s; use one of %s",
		name, didYouMean(nearest.Of(name, serviceNames[:])), strings.Join(serviceNames[:], ", "))
}

// String returns the name of the service, as it stands in configuration and
// enters the placement score.
func (s Service) String() string {
	if s >= numServices {
		return fmt.Sprintf("service(%d)", uint8(s))
	}
	return serviceNames[s]
}

// Letter returns the letter that stands for the service in the name of a
// heartbeat (S12). The service must be one of the constants.
func (s Service) Letter() byte { return serviceLetters[s] }

// MarshalText returns the name of the service.
func (s Service) MarshalText() ([]byte, error) {
	if s >= numServices {
		return nil, fmt.Errorf("service %d does not exist", uint8(s))
	}
	return []byte(serviceNames[s]), nil
}

// UnmarshalText reads the name of a service.
func (s *Service) UnmarshalText(text []byte) error {
	parsed, err := ParseService(string(text))
	if err == nil {
		*s = parsed
	}
	return err
}

func didYouMean(suggestion string) string {
	if suggestion == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", suggestion)
}
