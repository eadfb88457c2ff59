package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// MarkerName is the name of the object that shardctl puts into a root that it
// makes, so that a root with nothing else in it is known to be meant (H34).
const MarkerName = ".shardctl.json"

// EmptyRootError reports a root that nothing shows to be one: most likely its
// URL is wrong (H34).
type EmptyRootError struct{}

func (*EmptyRootError) Error() string {
	return fmt.Sprintf("nothing here is a fleet: neither %s nor %s, no entry under %s, no heartbeat under %s; check the URL, or make a root with `shardctl config init --root`",
		MarkerName, PolicyName, RegistryPrefix, HeartbeatPrefix)
}

// CheckRoot returns an [*EmptyRootError] when the root is empty (H34): state and
// heartbeats show nothing, though the registry was listed and the policy looked
// for, and the root has no marker.
func CheckRoot(ctx context.Context, r Reader, state *State, heartbeats []HeartbeatEntry) error {
	badEntry := slices.ContainsFunc(state.Warnings, func(w Warning) bool { return w.Kind == WarnBadURL })
	if state.PolicyFound || !state.Conclusive || !state.RegistryRead || len(state.Databases) > 0 || badEntry || len(heartbeats) > 0 {
		return nil
	}
	_, err := r.Get(ctx, MarkerName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &EmptyRootError{}
	case err != nil:
		return fmt.Errorf("look for the marker %s: %w", MarkerName, err)
	}
	return nil
}
