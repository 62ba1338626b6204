//! The items that integration tests and `bench` use.
//!
//! Not an interface: everything else of this crate is private to it, and these items change with it.

pub mod clock {
    //! Time since boot.
    pub use crate::clock::since_boot;
}

pub mod api {
    //! Objects on the wire.
    pub use crate::api::{EndpointSlice, Node, NodeLabels, Service};
}

pub mod conntrack {
    //! Connection tracking.
    pub use crate::conntrack::{Client, Flow, Stale, Swept};
}

pub mod daemon {
    //! The loop of `run`.
    pub use crate::daemon::{Daemon, Message, Periods};
}

pub mod dataplane {
    //! Kernels, real and in memory.
    pub use crate::dataplane::{Dataplane, Failure, Outcome};

    pub mod fake {
        //! A kernel in memory.
        pub use crate::dataplane::fake::{FakeKernel, Fault};
    }

    pub mod linux {
        //! A real kernel.
        pub use crate::dataplane::linux::Linux;
    }
}

pub mod diff {
    //! Ops from differences.
    pub use crate::diff::{Terms, diff, sort};
}

pub mod filter {
    //! The packet filter.
    pub use crate::filter::{Filter, FilterConfig, LocalMode, MasqueradeBit, Ruleset, TABLE};
}

pub mod frontend {
    //! Protocol, address and port.
    pub use crate::frontend::Frontend;
}

pub mod ledger {
    //! What is owned and what drains.
    pub use crate::ledger::{Drains, LedgerFile};
}

pub mod manifests {
    //! Objects from files.
    pub use crate::manifests::{Error, Loaded, Options, load, parse};
}

pub mod model {
    //! The cluster as the planner sees it.
    pub use crate::model::*;
}

pub mod nftables {
    //! nf_tables.
    pub use crate::nftables::{
        Client, Command, Element, ForwardReport, Forwarding, Key, Table, Tampering, Treatment,
        Value, Watch, transaction_length,
    };
}

pub mod observed {
    //! The observed state.
    pub use crate::observed::{Connections, CountedServer, Observed};
}

pub mod op {
    //! Every change of the kernel.
    pub use crate::op::Op;
}

pub mod plan {
    //! The desired state.
    pub use crate::plan::{
        Admission, Availability, Changed, Desired, FrontendKind, Machine, NodePortAddresses,
        PlanConfig, Planner, Scope, ServiceAddresses, VirtualServer, desired,
    };
}

pub mod problem {
    //! Bad input.
    pub use crate::problem::Problem;
}

pub mod store {
    //! The snapshot.
    pub use crate::store::{Event, Interner, Parsed, Snapshot, Touched, Update};
}

pub mod sync {
    //! Rounds.
    pub use crate::sync::{Applied, Error, Proxier};
}

pub mod sysctl {
    //! Kernel settings.
    pub use crate::sysctl::{KernelVersion, Roots, SysctlConfig, desired_settings};
}

pub mod watch {
    //! The API server.
    pub use crate::watch::{
        FollowState, Message, Server, Status, Timeouts, Watch, WatchConfig, start,
    };
}
