package fleet

import "github.com/shardctl/shardctl/internal/humantime"

// Version is a release line of Sleet whose settings differ from the other's
// (S27).
type Version string

const (
	// Sleet01 is Sleet 0.1: the settings of S8.
	Sleet01 Version = "0.1"
	// Sleet02 is Sleet 0.2: heartbeat_interval replaces heartbeat_bytes and
	// heartbeat_min_interval in compaction-workers.
	Sleet02 Version = "0.2"
)

// Versions returns the versions in ascending order.
func Versions() []Version { return []Version{Sleet01, Sleet02} }

// NodeSettings are the settings of the [node] table (S8).
type NodeSettings struct {
	// HeartbeatInterval is the time between two heartbeats of a node.
	HeartbeatInterval humantime.Duration `json:"heartbeat_interval"`
	// HeartbeatTimeout is the age from which on a heartbeat counts as dead.
	HeartbeatTimeout humantime.Duration `json:"heartbeat_timeout"`
	// ConfigPoll is the time between two reads of policy and registry.
	ConfigPoll humantime.Duration `json:"config_poll"`
}

// Settings are the settings of one database with every field filled in (S8), as
// [Policy.Resolve] makes them. They marshal to the nested object that their TOML tables suggest, durations as
// text, unset values as null. Settings may be shared; do not change them.
type Settings struct {
	// Services are the services that run for the database.
	Services    []Service           `json:"services"`
	GC          GCSettings          `json:"gc"`
	Coordinator CoordinatorSettings `json:"compactor-coordinator"`
	Workers     WorkersSettings     `json:"compaction-workers"`
	Mirror      MirrorSettings      `json:"mirror"`
}

// GCSettings are the settings of garbage collection, for each kind of object.
type GCSettings struct {
	Manifest    GCDirectory `json:"manifest"`
	WAL         GCDirectory `json:"wal"`
	WALFence    GCDirectory `json:"wal_fence"`
	Compacted   GCDirectory `json:"compacted"`
	Compactions GCDirectory `json:"compactions"`
	Detach      GCDetach    `json:"detach"`
}

// GCDirectory says how the objects of one kind are collected.
type GCDirectory struct {
	Enabled  bool               `json:"enabled"`
	Interval humantime.Duration `json:"interval"`
	MinAge   humantime.Duration `json:"min_age"`
	DryRun   bool               `json:"dry_run"`
}

// GCDetach says how clones are detached from their parents.
type GCDetach struct {
	Enabled  bool               `json:"enabled"`
	Interval humantime.Duration `json:"interval"`
}

// CoordinatorSettings are the settings of the compactor-coordinator.
type CoordinatorSettings struct {
	PollInterval             humantime.Duration `json:"poll_interval"`
	ManifestUpdateTimeout    humantime.Duration `json:"manifest_update_timeout"`
	MaxConcurrentCompactions uint32             `json:"max_concurrent_compactions"`
	CommitCompactedInterval  humantime.Duration `json:"commit_compacted_interval"`
	WorkerHeartbeatTimeout   humantime.Duration `json:"worker_heartbeat_timeout"`
	Scheduler                SchedulerSettings  `json:"scheduler"`
}

// SchedulerSettings say what the coordinator compacts.
type SchedulerSettings struct {
	MinCompactionSources uint32  `json:"min_compaction_sources"`
	MaxCompactionSources uint32  `json:"max_compaction_sources"`
	IncludeSizeThreshold float32 `json:"include_size_threshold"`
}

// WorkersSettings are the settings of the compaction-workers. Sizes are in
// bytes.
type WorkersSettings struct {
	// Count is the number of nodes that run workers for the database.
	Count                    uint32             `json:"count"`
	MaxConcurrentCompactions uint32             `json:"max_concurrent_compactions"`
	CompactionsPollInterval  humantime.Duration `json:"compactions_poll_interval"`
	// HeartbeatBytes and HeartbeatMinInterval exist in [Sleet01] only and are
	// nil otherwise.
	HeartbeatBytes       *uint64             `json:"heartbeat_bytes,omitempty"`
	HeartbeatMinInterval *humantime.Duration `json:"heartbeat_min_interval,omitempty"`
	// HeartbeatInterval exists in [Sleet02] only and is nil otherwise.
	HeartbeatInterval *humantime.Duration `json:"heartbeat_interval,omitempty"`
	MaxSSTSize        uint64              `json:"max_sst_size"`
	MaxFetchTasks     uint32              `json:"max_fetch_tasks"`
	BytesToFetch      uint64              `json:"bytes_to_fetch"`
	MaxSubcompactions uint32              `json:"max_subcompactions"`
	MinFilterKeys     uint32              `json:"min_filter_keys"`
	// CompressionCodec is snappy, zlib, lz4, zstd, or nil for none.
	CompressionCodec *string `json:"compression_codec"`
}

// MirrorSettings are the mirror targets by name.
type MirrorSettings struct {
	Targets map[string]*MirrorTarget `json:"targets"`

	rules []mirrorRule // the enabled targets, by name
}

// MirrorTarget is where and how databases are mirrored.
type MirrorTarget struct {
	// URL is the destination, or what takes the place of SourcePrefix in it. It
	// is as written, not canonical; nil when no layer sets it.
	URL *string `json:"url"`
	// SourcePrefix selects the databases under it; nil for the one database that
	// the target is set for.
	SourcePrefix *string `json:"source_prefix"`
	Disabled     bool    `json:"disabled"`
	// Mode is continuous or periodic.
	Mode string `json:"mode"`
	// Copier is builtin, rclone or external.
	Copier             string             `json:"copier"`
	Poll               humantime.Duration `json:"poll"`
	Interval           humantime.Duration `json:"interval"`
	MinAge             humantime.Duration `json:"min_age"`
	CheckpointLifetime humantime.Duration `json:"checkpoint_lifetime"`
	CopyParallelism    uint32             `json:"copy_parallelism"`
	Retention          MirrorRetention    `json:"retention"`
}

// MirrorRetention says how long restore points are kept.
type MirrorRetention struct {
	// Keep is nil when restore points are kept for ever.
	Keep *humantime.Duration `json:"keep"`
}

func builtinNode() NodeSettings {
	return NodeSettings{
		HeartbeatInterval: humantime.Seconds(10),
		HeartbeatTimeout:  humantime.Seconds(30),
		ConfigPoll:        humantime.Seconds(60),
	}
}

// builtinSettings returns the values of S8, or S27 for Sleet 0.2.
func builtinSettings(v Version) *Settings {
	directory := GCDirectory{Enabled: true, Interval: humantime.Seconds(60), MinAge: humantime.Seconds(300)}
	fence := directory
	fence.DryRun = true
	s := &Settings{
		Services: Services(),
		GC: GCSettings{
			Manifest: directory, WAL: directory, WALFence: fence, Compacted: directory, Compactions: directory,
			Detach: GCDetach{Enabled: true, Interval: humantime.Seconds(60)},
		},
		Coordinator: CoordinatorSettings{
			PollInterval:             humantime.Seconds(5),
			ManifestUpdateTimeout:    humantime.Seconds(300),
			MaxConcurrentCompactions: 4,
			CommitCompactedInterval:  humantime.Seconds(1),
			WorkerHeartbeatTimeout:   humantime.Seconds(30),
			Scheduler:                SchedulerSettings{MinCompactionSources: 4, MaxCompactionSources: 8, IncludeSizeThreshold: 4},
		},
		Workers: WorkersSettings{
			Count:                    1,
			MaxConcurrentCompactions: 4,
			CompactionsPollInterval:  humantime.Seconds(5),
			MaxSSTSize:               256 << 20,
			MaxFetchTasks:            4,
			BytesToFetch:             2 << 20,
			MaxSubcompactions:        4,
			MinFilterKeys:            1000,
		},
		Mirror: MirrorSettings{Targets: map[string]*MirrorTarget{}},
	}
	if v == Sleet02 {
		s.Workers.HeartbeatInterval = new(humantime.Seconds(10))
	} else {
		s.Workers.HeartbeatBytes = new(uint64(5 << 20))
		s.Workers.HeartbeatMinInterval = new(humantime.Seconds(5))
	}
	return s
}

func builtinTarget() *MirrorTarget {
	return &MirrorTarget{
		Mode:               "continuous",
		Copier:             "builtin",
		Poll:               humantime.Seconds(10),
		Interval:           humantime.Seconds(24 * 60 * 60),
		MinAge:             humantime.Seconds(300),
		CheckpointLifetime: humantime.Seconds(15 * 60),
		CopyParallelism:    8,
	}
}
