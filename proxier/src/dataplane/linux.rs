//! The Linux kernel, through netlink sockets: IPVS, rtnetlink, nf_tables and conntrack.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::{Dataplane, Failure, Outcome};
use crate::conntrack::{Stale, Swept};
use crate::observed::CountedServer;
use crate::op::Op;
use crate::plan::{Machine, ServiceAddresses};
use crate::{conntrack, filter, nftables};

mod addresses;
pub(crate) mod monitor;
mod rtnetlink;
mod virtual_servers;

use addresses::Addresses;

/// The kernel of one network namespace: that of the thread that called [`Linux::open`].
///
/// Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Linux {
    ipvs: ipvs::Client,
    addresses: Addresses,
    rules: nftables::RulesClient,
    /// `None` after the kernel rejected a request as unsupported.
    flows: Option<conntrack::ConntrackClient>,
}

impl Linux {
    /// Opens the sockets.
    ///
    /// # Errors
    /// If the kernel has no IPVS, or a socket cannot be opened.
    pub fn open(service_addresses: ServiceAddresses) -> Result<Self, Failure> {
        Ok(Self {
            ipvs: ipvs::Client::open()?,
            addresses: Addresses::open(service_addresses)?,
            rules: nftables::RulesClient::open(filter::TABLE)?,
            flows: Some(conntrack::ConntrackClient::open()?),
        })
    }

    /// Returns the netlink port of our rule changes.
    ///
    /// Notifications carry the port of their cause: it tells our changes from those of other programs.
    pub fn rules_port(&self) -> u32 {
        self.rules.port()
    }

    /// Reads the foreign local addresses, each with a description of its form.
    ///
    /// Addresses on interfaces are not among them, except those on kube-proxy's dummy device.
    ///
    /// # Errors
    /// If routes or addresses cannot be read.
    pub fn foreign_addresses(&mut self) -> Result<BTreeMap<IpAddr, String>, Failure> {
        self.addresses.read_foreign()
    }
}

impl Dataplane for Linux {
    fn machine(&mut self) -> Result<Machine, Failure> {
        Ok(Machine {
            addresses: self.addresses.read_machine()?,
            ..Machine::default()
        })
    }

    fn virtual_servers(&mut self, each: &mut dyn FnMut(CountedServer)) -> Result<(), Failure> {
        Ok(virtual_servers::walk(&mut self.ipvs, each)?)
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        Ok(virtual_servers::find(&mut self.ipvs, key)?)
    }

    fn addresses(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, Failure> {
        self.addresses.read()
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        if !self.rules.exists()? {
            return Ok(None);
        }
        Ok(Some(self.rules.read_generation()?))
    }

    fn change_rules(
        &mut self,
        table: &nftables::Table,
        commands: &[nftables::Command],
    ) -> Result<Option<u32>, Failure> {
        match self.rules.apply(commands) {
            Err(error) if error.is_out_of_step() => {
                tracing::warn!("{error}; reading all packet rules back to repair them");
                return self.replace_rules(table);
            }
            other => other?,
        }
        Ok(self.rules.generation())
    }

    fn replace_rules(&mut self, table: &nftables::Table) -> Result<Option<u32>, Failure> {
        self.rules.restore(table)?;
        Ok(self.rules.generation())
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        Ok(self.rules.delete()?)
    }

    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        let Some(flows) = &mut self.flows else {
            return Ok(Swept::default());
        };
        match flows.sweep(stale) {
            Err(error) if error.is_unsupported() => {
                tracing::warn!(
                    "{error}; stale UDP flows stay until they time out; load the kernel module \
                     nf_conntrack_netlink and restart to have them deleted"
                );
                self.flows = None;
                Ok(Swept::default())
            }
            other => Ok(other?),
        }
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(ops.len());
        // Adjacent Ops of one kind share a system call. Grouping all Ops of a kind would need fewer, but
        // would break their order (`Stage`).
        for run in
            ops.chunk_by(|one, next| one.service_key().is_some() == next.service_key().is_some())
        {
            match run.first().and_then(Op::service_key) {
                Some(_) => virtual_servers::apply(&mut self.ipvs, run, &mut outcomes),
                None => outcomes.extend(self.addresses.apply(run)),
            }
        }
        outcomes
    }
}

impl From<nftables::TransactionError> for Failure {
    fn from(error: nftables::TransactionError) -> Self {
        let errno = match &error {
            nftables::TransactionError::Refused { refusal, .. } => Some(refusal.errno),
            _ => None,
        };
        Self {
            errno,
            message: format!("packet rules: {error}"),
        }
    }
}

impl From<ipvs::Error> for Failure {
    fn from(error: ipvs::Error) -> Self {
        let errno = match &error {
            ipvs::Error::Refused { .. } | ipvs::Error::ModuleMissing { .. } => error.errno(),
            // All other errors are the socket's. `None` tells the caller that the request may have taken
            // effect.
            _ => None,
        };
        Self {
            errno,
            message: error.to_string(),
        }
    }
}
