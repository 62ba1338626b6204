//! The dataplanes of the kernel with which the daemon runs.

use lab::net::Cluster;

use super::daemon::Daemon;
use super::{Connections, POD1, POD2};

/// A dataplane of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Ipvs,
    Nftables,
}

impl Kernel {
    /// Returns the flags of a daemon with this dataplane and these `flags`.
    pub(crate) fn flags<'a>(self, flags: &[&'a str]) -> Vec<&'a str> {
        let dataplane = match self {
            Self::Ipvs => "--dataplane=ipvs",
            Self::Nftables => "--dataplane=nftables",
        };
        [&[dataplane][..], flags].concat()
    }

    /// Gives the node the routes that its processes need: with nftables no service address is local.
    pub(crate) fn prepare(self, cluster: &Cluster) {
        if self == Self::Nftables {
            for (version, via) in [("-4", "203.0.113.9"), ("-6", "2001:db8:113::9")] {
                let route = ["ip", version, "route", "add", "default", "via", via];
                cluster.node.exec(&route);
            }
        }
    }

    /// Starts a daemon that serves pod1 and pod2, and opens connections to both.
    pub(crate) fn serving(self, flags: &[&str]) -> (Cluster, Daemon, Connections) {
        let cluster = Cluster::conformance();
        self.prepare(&cluster);
        let mut daemon = Daemon::new(&self.flags(flags));
        daemon.endpoints(&[POD1, POD2]);
        daemon.start();
        // The address becomes local after the virtual server is added.
        daemon.eventually("the Service answers", || {
            cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some()
        });
        let mut connections = Connections::open(&cluster);
        // nftables draws endpoints at random.
        daemon.eventually("both endpoints serve", || {
            let serves = |pod| connections.0.iter().any(|(_, it)| it == pod);
            let both_serve = serves("pod1") && serves("pod2");
            if !both_serve {
                connections = Connections::open(&cluster);
            }
            both_serve
        });
        (cluster, daemon, connections)
    }
}
