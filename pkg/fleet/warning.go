package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// WarningKind is the class of a [Warning].
type WarningKind string

// The kinds, in the order in which warnings are sorted (S11).
const (
	// WarnListFailed: the list of Object failed; the last one is kept.
	WarnListFailed WarningKind = "list-failed"
	// WarnReadFailed: Object, the policy, could not be read; the last good one
	// is kept.
	WarnReadFailed WarningKind = "read-failed"
	// WarnPolicyVanished: Object, the policy, is gone; the last good one is kept.
	WarnPolicyVanished WarningKind = "policy-vanished"
	// WarnNotRegistryEntry: Object under dbs/ is no registry entry.
	WarnNotRegistryEntry WarningKind = "not-a-registry-entry"
	// WarnBadURL: the name of Object stands for no URL that can be registered.
	WarnBadURL WarningKind = "bad-url"
	// WarnInvalidEntry: Object could not be read or says what is not allowed;
	// Effect tells what happens to its database.
	WarnInvalidEntry WarningKind = "invalid-entry"
	// WarnInvalidPolicy: Object, the policy, is not valid; the last good one is
	// kept, or the built-in values are.
	WarnInvalidPolicy WarningKind = "invalid-policy"
	// WarnDestinationRegistered: Destination, of a mirror, is a registered
	// database itself.
	WarnDestinationRegistered WarningKind = "destination-registered"
	// WarnDestinationShared: several Databases are mirrored to Destination.
	WarnDestinationShared WarningKind = "destination-shared"
	// WarnNoNode: no live node offers Service, which some database wants.
	WarnNoNode WarningKind = "no-node"
	// WarnAlias: Ignored stands for the same Database as Used, which wins.
	WarnAlias WarningKind = "alias"
	// WarnNotCanonical: Object is not named by the canonical URL of Database,
	// for which it is used all the same.
	WarnNotCanonical WarningKind = "not-canonical"
	// WarnNoTarget: Database wants to be mirrored, and no target applies to it.
	WarnNoTarget WarningKind = "no-target"
)

var warningOrder = []WarningKind{
	WarnListFailed, WarnReadFailed, WarnPolicyVanished, WarnNotRegistryEntry, WarnBadURL, WarnInvalidEntry,
	WarnInvalidPolicy, WarnDestinationRegistered, WarnDestinationShared, WarnNoNode, WarnAlias, WarnNotCanonical, WarnNoTarget,
}

// Effects of [WarnInvalidEntry].
const (
	// EffectDisabled: nothing runs for the database.
	EffectDisabled = "disabled"
	// EffectKept: the last good content of the file stays in force.
	EffectKept = "kept"
)

// Warning is something wrong with a fleet that does not stop it (S11). Only the
// fields that its kind names are set. Objects are relative to the root.
type Warning struct {
	Kind        WarningKind `json:"kind"`
	Object      string      `json:"object,omitempty"`
	Database    string      `json:"database,omitempty"`
	Used        string      `json:"used,omitempty"`
	Ignored     string      `json:"ignored,omitempty"`
	Effect      string      `json:"effect,omitempty"`
	Destination string      `json:"destination,omitempty"`
	Databases   []string    `json:"databases,omitempty"`
	Service     string      `json:"service,omitempty"`
	// Message says it in words for people; it may change at any time.
	Message string `json:"message"`
}

func (w Warning) String() string { return w.Message }

// sortWarnings sorts by kind, then by the objects.
func sortWarnings(warnings []Warning) {
	slices.SortFunc(warnings, func(a, b Warning) int {
		return cmp.Or(
			cmp.Compare(slices.Index(warningOrder, a.Kind), slices.Index(warningOrder, b.Kind)),
			strings.Compare(a.Object, b.Object),
			strings.Compare(a.Used, b.Used),
			strings.Compare(a.Ignored, b.Ignored),
			strings.Compare(a.Destination, b.Destination),
			strings.Compare(a.Database, b.Database),
			strings.Compare(a.Service, b.Service),
			strings.Compare(a.Message, b.Message),
		)
	})
}

func notRegistryEntry(object string) Warning {
	return Warning{Kind: WarnNotRegistryEntry, Object: object, Message: fmt.Sprintf(
		"%s is no registry entry and is ignored: entries are the escaped URL of a database and %s", object, registrySuffix)}
}

func badURL(object string, err error) Warning {
	return Warning{Kind: WarnBadURL, Object: object, Message: fmt.Sprintf("%s is ignored: %v", object, err)}
}

func notCanonical(object, database string) Warning {
	return Warning{Kind: WarnNotCanonical, Object: object, Database: database, Message: fmt.Sprintf(
		"%s is not the canonical name of %s; it is used while no canonical one is there", object, database)}
}

func alias(database, used, ignored string) Warning {
	return Warning{Kind: WarnAlias, Database: database, Used: used, Ignored: ignored, Message: fmt.Sprintf(
		"%s and %s both stand for %s; the first is used, the second ignored", used, ignored, database)}
}

func invalidEntry(object, effect string, err error) Warning {
	consequence := "its database is disabled"
	if effect == EffectKept {
		consequence = "its last good content stays in force"
	}
	return Warning{Kind: WarnInvalidEntry, Object: object, Effect: effect, Message: fmt.Sprintf(
		"%s cannot be used, %s: %v", object, consequence, err)}
}

func noNode(s Service) Warning {
	return Warning{Kind: WarnNoNode, Service: s.String(), Message: fmt.Sprintf(
		"no live node offers %s, which databases want", s)}
}
