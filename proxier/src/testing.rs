//! The items that integration tests and `bench` use.
//!
//! Not a stable interface: all other items of this crate are private, and these change with them.

pub mod clock {
    //! Time since boot.
    pub use crate::util::clock::since_boot;
}

pub mod api {
    //! Kubernetes objects as the API server sends them.
    pub use crate::cluster::api::{
        ANNOTATIONS, EndpointSliceObject, FromProtobuf, NodeLabels, NodeObject, ProtobufError,
        ServiceObject, WireObject, from_json, from_protobuf,
    };
}

pub mod config {
    //! kube-proxy's configuration.
    pub use crate::cli::config::{Effect, FIELDS, FLAGS, Field, Flag};
}

pub mod conntrack {
    //! Connection tracking.
    pub use crate::dataplane::conntrack::{ConntrackClient, Flow, Stale, Swept};
}

pub mod daemon {
    //! The event loop of `run`.
    pub use crate::daemon::{Chore, Daemon, Meter, Periods, Publisher, Round};
    pub use crate::sources::message::Message;
}

pub mod dataplane {
    //! The kernel behind a trait.
    pub use crate::dataplane::{
        Applied, AppliedChange, Counts, Dataplane, Extent, Failure, Outcome, Outcomes, Planned,
        Reason, Serving,
    };

    pub mod answer_path {
        //! The way of answers to clients' addresses.
        pub use crate::dataplane::answer_path::{TABLE, table};
    }

    pub mod ipvs {
        //! The plan in the terms of IPVS.
        pub use crate::dataplane::ipvs::{
            Changes, InsideMarks, Ipvs, Kernel, KernelParts, MarkChanges, Owner, Owners, Wanted,
            WantedServer,
        };
    }

    #[cfg(any(test, feature = "kernel-in-memory"))]
    pub mod fake {
        //! A kernel in memory.
        pub use crate::dataplane::ipvs::fake::{FakeKernel, Fault};
    }

    pub mod linux {
        //! A real kernel.
        pub use crate::dataplane::ipvs::linux::Linux;
    }

    pub mod nftables {
        //! Services as rules of nf_tables.
        pub use crate::dataplane::nftables::{
            Changes, Content, Nftables, ServiceTable, TABLE, table,
        };
    }

    pub mod userspace {
        //! The relay instead of IPVS.
        pub use crate::dataplane::userspace::Userspace;
    }
}

pub mod definition {
    //! Virtual servers without their keys.
    pub use crate::dataplane::ipvs::definition::ServerDefinition;
}

pub mod destinations {
    //! Destinations of a virtual server.
    pub use crate::dataplane::ipvs::destinations::{Destinations, planned};
}

pub mod diff {
    //! From desired and observed state to Ops.
    pub use crate::dataplane::ipvs::diff::{DeletionRules, diff, sort};
}

pub mod events {
    //! Events of the API server.
    pub use crate::sources::events::{EventTimes, Notice, Occurrence, Regarding, Severity};
}

pub mod filter {
    //! The packet filter.
    pub use crate::dataplane::ipvs::filter::{
        Content, Filter, FilterConfig, LocalMode, MarkBit, TABLE,
    };
}

pub mod frontend {
    //! The key of a frontend.
    pub use crate::plan::frontend::Frontend;
}

pub mod ledger {
    //! The record of owned virtual servers and draining destinations.
    pub use crate::dataplane::ipvs::ledger::{Drains, LedgerFile, Retired};
}

pub mod manifests {
    //! Objects from files.
    pub use crate::sources::manifests::{Allocated, Error, Loaded, Options, load, parse, reload};
}

pub mod marks {
    //! The firewall marks of Service ports.
    pub use crate::dataplane::ipvs::marks::{MarkKey, Marks};
}

pub mod model {
    //! Kubernetes objects as the planner uses them.
    pub use crate::cluster::model::*;
}

pub mod host {
    //! The rules of other programs.
    pub use crate::host::{
        ChainName, ChainReport, ForeignChains, MarkChains, MarkReport, Removal, Treatment,
        Treatments,
    };
}

pub mod observed {
    //! The observed state.
    pub use crate::dataplane::ipvs::observed::{
        Carrier, Connections, CountedServer, LocalAddresses, Observed, ObservedServer,
    };
}

pub mod op {
    //! The changes of the kernel.
    pub use crate::dataplane::ipvs::op::{AddressForm, Op, Ops};
}

pub mod plan {
    //! The desired state.
    #[cfg(any(test, feature = "kernel-in-memory"))]
    pub use crate::plan::example;
    pub use crate::plan::{
        Access, Availability, Balancing, Capabilities, Changed, Desired, Endpoints, ExternalRanges,
        FrontendKind, FrontendPlan, HealthCheck, InsidePlan, Machine, NodePortAddresses, Peers,
        PlanConfig, Planner, Profile, RelayAbilities, RelayOptions, Scope, SelectedEndpoint,
        ServiceAddresses, ServiceRanges, SourceFlaw, Standings, desired,
    };
}

pub mod problem {
    //! Problems of the input.
    pub use crate::cluster::problem::Problem;
}

pub mod shadow {
    //! A comparison of the present table with the plan, and its output.
    pub use crate::explain::shadow::{Compared, Comparison};

    /// Returns what would change, as text.
    pub fn changes(comparison: &Comparison) -> String {
        crate::explain::report::changes(comparison)
    }

    /// Returns what the present table gets wrong, as text.
    pub fn findings(comparison: &Comparison) -> String {
        crate::explain::report::findings(comparison)
    }
}

pub mod split_map {
    //! Ordered maps with short keys for IPv4.
    pub use crate::dataplane::ipvs::split_map::{SplitKey, SplitMap};
}

pub mod store {
    //! The snapshot of the API objects.
    pub use crate::cluster::store::{Event, Interner, Parsed, Snapshot, Touched, Update};
}

pub mod sync {
    //! Rounds.
    pub use crate::reconcile::Proxier;
}

pub mod sysctl {
    //! Kernel settings.
    pub use crate::host::sysctl::{KernelVersion, Roots, SysctlConfig, desired_settings};
}

pub mod watch {
    //! The client of the API server.
    pub use crate::sources::watch::{
        Encoding, FollowState, NodeScope, ServerLocation, Status, Timeouts, Watch, WatchConfig,
        WatchMessage, start,
    };
}
