package fleet

import (
	"math"

	"github.com/shardctl/shardctl/internal/humantime"
)

// field is one setting of a structure S: how its TOML value is read, checked and
// put in place. Fields are listed in the order in which Sleet checks them.
type field[S any] struct {
	// name is the dotted path from the table that S stands for.
	name string
	read func(*tomlValue) (any, *valueError)
	set  func(*S, any)
	// check returns what is wrong with a value by itself, or "".
	check func(any) string
}

// required is a field of S that always has a value.
func required[S, T any](name string, read func(*tomlValue) (T, *valueError), at func(*S) *T, checks ...func(T) string) field[S] {
	return newField(name, read, func(s *S, v T) { *at(s) = v }, checks)
}

// optional is a field of S that may be unset.
func optional[S, T any](name string, read func(*tomlValue) (T, *valueError), at func(*S) **T, checks ...func(T) string) field[S] {
	return newField(name, read, func(s *S, v T) { *at(s) = &v }, checks)
}

func newField[S, T any](name string, read func(*tomlValue) (T, *valueError), set func(*S, T), checks []func(T) string) field[S] {
	return field[S]{
		name: name,
		read: func(v *tomlValue) (any, *valueError) { return read(v) },
		set:  func(s *S, v any) { set(s, v.(T)) },
		check: func(v any) string {
			for _, check := range checks {
				if problem := check(v.(T)); problem != "" {
					return problem
				}
			}
			return ""
		},
	}
}

func positiveDuration(d humantime.Duration) string {
	if d.IsZero() {
		return "must be longer than 0s"
	}
	return ""
}

func atLeastOne[T uint32 | uint64](n T) string {
	if n == 0 {
		return "must be 1 or more"
	}
	return ""
}

func positiveNumber(f float32) string {
	if f > 0 && !math.IsInf(float64(f), 0) {
		return ""
	}
	return "must be a number above 0 that a 32-bit float can hold"
}

var nodeFields = []field[NodeSettings]{
	required("node.heartbeat_interval", readDuration, func(n *NodeSettings) *humantime.Duration { return &n.HeartbeatInterval }),
	required("node.heartbeat_timeout", readDuration, func(n *NodeSettings) *humantime.Duration { return &n.HeartbeatTimeout }),
	required("node.config_poll", readDuration, func(n *NodeSettings) *humantime.Duration { return &n.ConfigPoll }),
}

var targetFields = []field[MirrorTarget]{
	optional("url", readString, func(t *MirrorTarget) **string { return &t.URL }),
	optional("source_prefix", readString, func(t *MirrorTarget) **string { return &t.SourcePrefix }),
	required("disabled", readBool, func(t *MirrorTarget) *bool { return &t.Disabled }),
	required("mode", readOneOf("continuous", "periodic"), func(t *MirrorTarget) *string { return &t.Mode }),
	required("copier", readOneOf("builtin", "rclone", "external"), func(t *MirrorTarget) *string { return &t.Copier }),
	required("poll", readDuration, func(t *MirrorTarget) *humantime.Duration { return &t.Poll }, positiveDuration),
	required("interval", readDuration, func(t *MirrorTarget) *humantime.Duration { return &t.Interval }, positiveDuration),
	required("min_age", readDuration, func(t *MirrorTarget) *humantime.Duration { return &t.MinAge }, positiveDuration),
	required("checkpoint_lifetime", readDuration, func(t *MirrorTarget) *humantime.Duration { return &t.CheckpointLifetime }, positiveDuration),
	required("copy_parallelism", readUint32, func(t *MirrorTarget) *uint32 { return &t.CopyParallelism }, atLeastOne),
	optional("retention.keep", readDuration, func(t *MirrorTarget) **humantime.Duration { return &t.Retention.Keep }, positiveDuration),
}

// fieldsBeforeMirror and workersFields are those of the [database] table; Sleet
// checks mirror targets in between.
var fieldsBeforeMirror = func() []field[Settings] {
	fields := []field[Settings]{
		required("services", readServices, func(s *Settings) *[]Service { return &s.Services }),
	}
	for _, d := range []struct {
		name string
		at   func(*GCSettings) *GCDirectory
	}{
		{"manifest", func(g *GCSettings) *GCDirectory { return &g.Manifest }},
		{"wal", func(g *GCSettings) *GCDirectory { return &g.WAL }},
		{"wal_fence", func(g *GCSettings) *GCDirectory { return &g.WALFence }},
		{"compacted", func(g *GCSettings) *GCDirectory { return &g.Compacted }},
		{"compactions", func(g *GCSettings) *GCDirectory { return &g.Compactions }},
	} {
		prefix := "gc." + d.name + "."
		fields = append(fields,
			required(prefix+"enabled", readBool, func(s *Settings) *bool { return &d.at(&s.GC).Enabled }),
			required(prefix+"interval", readDuration, func(s *Settings) *humantime.Duration { return &d.at(&s.GC).Interval }, positiveDuration),
			required(prefix+"min_age", readDuration, func(s *Settings) *humantime.Duration { return &d.at(&s.GC).MinAge }),
			required(prefix+"dry_run", readBool, func(s *Settings) *bool { return &d.at(&s.GC).DryRun }),
		)
	}
	return append(fields,
		required("gc.detach.enabled", readBool, func(s *Settings) *bool { return &s.GC.Detach.Enabled }),
		required("gc.detach.interval", readDuration, func(s *Settings) *humantime.Duration { return &s.GC.Detach.Interval }, positiveDuration),

		required("compactor-coordinator.poll_interval", readDuration, func(s *Settings) *humantime.Duration { return &s.Coordinator.PollInterval }, positiveDuration),
		required("compactor-coordinator.manifest_update_timeout", readDuration, func(s *Settings) *humantime.Duration { return &s.Coordinator.ManifestUpdateTimeout }, positiveDuration),
		required("compactor-coordinator.commit_compacted_interval", readDuration, func(s *Settings) *humantime.Duration { return &s.Coordinator.CommitCompactedInterval }, positiveDuration),
		required("compactor-coordinator.worker_heartbeat_timeout", readDuration, func(s *Settings) *humantime.Duration { return &s.Coordinator.WorkerHeartbeatTimeout }, positiveDuration),
		required("compactor-coordinator.max_concurrent_compactions", readUint32, func(s *Settings) *uint32 { return &s.Coordinator.MaxConcurrentCompactions }, atLeastOne),
		required("compactor-coordinator.scheduler.min_compaction_sources", readUint32, func(s *Settings) *uint32 { return &s.Coordinator.Scheduler.MinCompactionSources }, atLeastOne),
		required("compactor-coordinator.scheduler.max_compaction_sources", readUint32, func(s *Settings) *uint32 { return &s.Coordinator.Scheduler.MaxCompactionSources }, atLeastOne),
		required("compactor-coordinator.scheduler.include_size_threshold", readFloat32, func(s *Settings) *float32 { return &s.Coordinator.Scheduler.IncludeSizeThreshold }, positiveNumber),
	)
}()

// workersFields returns the settings of [compaction-workers], which alone differ
// between versions (S27).
func workersFields(v Version) []field[Settings] {
	fields := []field[Settings]{
		required("compaction-workers.count", readUint32, func(s *Settings) *uint32 { return &s.Workers.Count }, func(n uint32) string {
			if n == 0 {
				return `must be 1 or more (to run none, leave "compaction-workers" out of services)`
			}
			return ""
		}),
		required("compaction-workers.max_concurrent_compactions", readUint32, func(s *Settings) *uint32 { return &s.Workers.MaxConcurrentCompactions }, atLeastOne),
		required("compaction-workers.compactions_poll_interval", readDuration, func(s *Settings) *humantime.Duration { return &s.Workers.CompactionsPollInterval }, positiveDuration),
	}
	if v == Sleet02 {
		fields = append(fields,
			optional("compaction-workers.heartbeat_interval", readDuration, func(s *Settings) **humantime.Duration { return &s.Workers.HeartbeatInterval }, positiveDuration))
	} else {
		fields = append(fields,
			optional("compaction-workers.heartbeat_bytes", readUint64, func(s *Settings) **uint64 { return &s.Workers.HeartbeatBytes }),
			optional("compaction-workers.heartbeat_min_interval", readDuration, func(s *Settings) **humantime.Duration { return &s.Workers.HeartbeatMinInterval }))
	}
	return append(fields,
		required("compaction-workers.max_fetch_tasks", readUint32, func(s *Settings) *uint32 { return &s.Workers.MaxFetchTasks }, atLeastOne),
		required("compaction-workers.max_sst_size", readUint64, func(s *Settings) *uint64 { return &s.Workers.MaxSSTSize }, atLeastOne),
		required("compaction-workers.bytes_to_fetch", readUint64, func(s *Settings) *uint64 { return &s.Workers.BytesToFetch }, atLeastOne),
		required("compaction-workers.max_subcompactions", readUint32, func(s *Settings) *uint32 { return &s.Workers.MaxSubcompactions }),
		required("compaction-workers.min_filter_keys", readUint32, func(s *Settings) *uint32 { return &s.Workers.MinFilterKeys }),
		optional("compaction-workers.compression_codec", readOneOf("snappy", "zlib", "lz4", "zstd"), func(s *Settings) **string { return &s.Workers.CompressionCodec }),
	)
}
