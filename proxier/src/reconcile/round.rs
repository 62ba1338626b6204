//! The steps of a round.
//!
//! ```text
//!  plan ─▶ observe ─▶ retire ─▶ changes ─▶ apply
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::budget::Budget;
use super::{Cluster, Proxier};
use crate::cluster::store::Touched;
use crate::dataplane::{Applied, Dataplane, Extent, Failure};
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, Changed, FrontendPlan};

impl<D: Dataplane> Proxier<D> {
    /// Makes a round at `now`, in time since boot.
    pub(super) fn round(
        &mut self,
        extent: Extent,
        now: Duration,
    ) -> Result<Applied<D::Changes>, Failure> {
        // The times of these lines show where a slow round spends its time.
        tracing::trace!(?extent, "round: begins");
        let changes = self.prepare(extent, now)?;
        tracing::trace!("round: prepared");
        let planned = self.cluster.planned();
        Ok(self.dataplane.apply(planned, changes, extent, now))
    }

    /// Makes a round up to its changes, which are not applied.
    pub(super) fn prepare(&mut self, extent: Extent, now: Duration) -> Result<D::Changes, Failure> {
        self.begin(extent, now)?;
        let planned = self.cluster.planned();
        if self.dataplane.observe(planned, extent, now)? {
            self.plan(Touched::none(), now);
        }
        let planned = self.cluster.planned();
        let kept = self.dataplane.retire(planned, extent, now)?;
        self.keep_addresses(kept, now);
        let planned = self.cluster.planned();
        self.dataplane.changes(planned, extent, now)
    }

    /// Makes a round up to its plan, for which it reads of the kernel only what the plan depends on.
    pub(super) fn begin(&mut self, extent: Extent, now: Duration) -> Result<(), Failure> {
        if extent == Extent::All {
            self.read_machine()?;
        } else if (self.cluster).asks_for_new_addresses(self.dataplane.capabilities())
            && let Ok(peers) = self.dataplane.peers()
        {
            // Another machine may have them since the last resync, such as a node that joined the cluster.
            self.cluster.machine.peers.next_hops = peers.next_hops;
            self.cluster.machine.peers.tunnel_ends = peers.tunnel_ends;
        }
        let touched = &self.cluster.input.touched;
        (self.dataplane).begin(self.cluster.planned(), touched, extent, now)?;
        let touched = std::mem::replace(&mut self.cluster.input.touched, Touched::none());
        self.hear(now);
        self.plan(touched, now);
        Ok(())
    }

    fn read_machine(&mut self) -> Result<(), Failure> {
        let mut machine = self.dataplane.machine()?;
        let before = &mut self.cluster.machine;
        machine.peers.api_servers = std::mem::take(&mut before.peers.api_servers);
        machine.standings = std::mem::take(&mut before.standings);
        *before = machine;
        Ok(())
    }

    /// Reads what endpoints answered, if that is due. A failure only means that nothing is learnt this time.
    fn hear(&mut self, now: Duration) {
        let Cluster {
            planner,
            machine,
            silence: ears,
            ..
        } = &mut self.cluster;
        let mut left = Budget::whole();
        let planned = &planner.desired().frontends;
        let endpoints_of = |frontend: &Frontend| {
            let plan = planned.get(frontend);
            plan.map_or(0, FrontendPlan::endpoint_count)
        };
        for service in ears.take_due(now, &mut machine.standings) {
            let frontends = planner.frontends_of(&service);
            let Some(frontends) = left.take(frontends, endpoints_of) else {
                break;
            };
            if let Ok(Some(tally)) = self.dataplane.answers(frontends) {
                ears.hear(&service, (tally, now), &mut machine.standings);
            }
        }
    }

    /// Plans the touched Services, until the dataplane can serve the plan.
    fn plan(&mut self, mut touched: Touched, now: Duration) {
        loop {
            let Cluster {
                input,
                planner,
                machine,
                newcomers,
                silence,
            } = &mut self.cluster;
            let standings = &mut machine.standings;
            let capabilities = self.dataplane.capabilities();
            silence.follow(&input.snapshot, (&touched, capabilities), standings);
            newcomers.update(
                &input.snapshot,
                (&touched, now),
                planner.config(),
                standings,
            );
            let changed = planner.update(&input.snapshot, machine, capabilities, touched);
            // Each pass finds another thing that the dataplane cannot do, so the loop ends.
            if !self.follow(changed, now) {
                return;
            }
            touched = Touched::none();
        }
    }

    /// Plans these service addresses as local, though no frontend may have them.
    fn keep_addresses(&mut self, kept: BTreeSet<IpAddr>, now: Duration) {
        let Cluster { input, planner, .. } = &mut self.cluster;
        if kept != *planner.kept_addresses() {
            let changed = planner.keep_addresses(kept, &input.snapshot);
            self.follow(changed, now);
        }
    }

    fn follow(&mut self, changed: Changed, now: Duration) -> bool {
        let planned = self.cluster.planned();
        let needs_plan = self.dataplane.follow(planned, &changed, now);
        self.health_ports.extend(changed.health_checks);
        needs_plan
    }
}

impl Cluster {
    /// Returns whether a touched Service has an external address that is neither planned, nor refused, nor known as another
    /// machine's, nor served by another program at all ports of the Service.
    fn asks_for_new_addresses(&self, capabilities: &Capabilities) -> bool {
        let Touched::Some(names) = &self.input.touched else {
            return true;
        };
        let (planner, machine) = (&self.planner, &self.machine);
        let services = names.iter();
        let mut services = services.filter_map(|name| self.input.snapshot.service(name));
        services.any(|service| {
            let is_foreign = |&address: &IpAddr| {
                service.ports.iter().all(|port| {
                    let (protocol, port) = (port.protocol, port.port);
                    capabilities.foreign.contains(&Frontend {
                        address,
                        protocol,
                        port,
                    })
                })
            };
            let ranges = &planner.config().external_ranges;
            // The planner reports what is refused.
            let service = ranges.restrict(service, &mut Vec::new());
            let external = service.external();
            let addresses = external.external_ips.iter();
            let mut addresses = addresses.chain(&external.load_balancer_ips);
            addresses.any(|address| {
                !planner.desired().addresses.contains_key(address)
                    && !machine.has(address)
                    && !planner.is_elsewhere(address, &service.name)
                    && !is_foreign(address)
            })
        })
    }
}
