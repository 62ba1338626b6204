//! The kernel of `plan --against empty`.

use ipvs_netlink::{SchedulerName, ServiceKey};
use schedulers::Registry;

use crate::dataplane::ipvs::Kernel;
use crate::dataplane::ipvs::marks::MarkKey;
use crate::dataplane::ipvs::observed::{CountedServer, LocalAddresses};
use crate::dataplane::ipvs::op::Op;
use crate::dataplane::{Failure, Outcome};
use crate::plan::Machine;

/// A kernel without virtual servers, service addresses and packet rules, which changes nothing.
#[derive(Debug, Default)]
pub(super) struct EmptyKernel {
    pub(super) machine: Machine,
}

impl Kernel for EmptyKernel {
    fn machine(&mut self) -> Result<Machine, Failure> {
        Ok(self.machine.clone())
    }

    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure> {
        Ok(MarkKey::default())
    }

    fn virtual_servers(
        &mut self,
        _: &mut dyn Iterator<Item = ServiceKey>,
        _: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn virtual_server(&mut self, _: &ServiceKey) -> Result<Option<CountedServer>, Failure> {
        Ok(None)
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        Ok(LocalAddresses::default())
    }

    fn has_scheduler(&mut self, name: SchedulerName) -> Result<Option<bool>, Failure> {
        let registry = Registry::kernel();
        let mut known = registry.names();
        Ok(Some(known.any(|known| known == name.as_str())))
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        vec![Ok(()); ops.len()]
    }
}
