//! The Ops of a round, and how they are reported.

use std::fmt;

use super::foreign::nobody;
use super::{KernelParts, Wanted};
use crate::dataplane::ipvs::ledger::Owned;
use crate::dataplane::ipvs::op::{Op, Ops};
use crate::dataplane::{Applied, Reason, applied};

/// The Ops of a round.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The Ops, in order.
    pub ops: Ops,
    /// The drift that they repair.
    pub drifted: KernelParts,
}

impl Changes {
    /// Returns why `op` is made.
    pub fn reason(&self, op: &Op) -> Reason {
        let Some(key) = op.service_key() else {
            let is_repair = op.address().map_or(self.drifted.carrier, |address| {
                self.drifted.addresses.contains(&address)
            });
            return if is_repair {
                Reason::SummedDrift
            } else {
                Reason::Plan
            };
        };
        if self.drifted.virtual_servers.contains(&key) {
            Reason::Drift
        } else {
            Reason::Plan
        }
    }
}

/// Returns the kind of `op`, as in the metrics.
pub(super) fn kind(op: &Op) -> &'static str {
    match op {
        Op::AddService(_) => "add_service",
        Op::SetService(_) => "set_service",
        Op::DeleteService(_) => "delete_service",
        Op::AddDestination(..) => "add_destination",
        Op::SetDestination(..) => "set_destination",
        Op::DeleteDestination(..) => "delete_destination",
        Op::AddAddress(..) => "add_address",
        Op::SetAddress(..) => "set_address",
        Op::DeleteAddress(_) | Op::DeleteLeftover(..) => "delete_address",
        Op::AddCarrier => "add_device",
        Op::SetCarrier => "set_device",
        Op::DeleteCarrier => "delete_device",
    }
}

/// An Op with the name of its Service port: `add service TCP 10.96.0.10:53 rr (kube-system/dns:tcp)`.
pub(crate) struct NamedOp<'a> {
    op: &'a Op,
    wanted: Wanted<'a>,
    owned: &'a Owned,
}

impl<'a> NamedOp<'a> {
    /// Finds the name in the desired state, or else in the ledger.
    ///
    /// A virtual server that `op` deletes is usually no longer desired; the ledger still names it.
    pub(crate) fn new(op: &'a Op, wanted: Wanted<'a>, owned: &'a Owned) -> Self {
        Self { op, wanted, owned }
    }
}

impl fmt::Display for NamedOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op.fmt(f)?;
        let Some(key) = self.op.service_key() else {
            return Ok(());
        };
        // Only here, because most Ops are named for lines that are not written.
        let owner = self.owned.owner(&key).filter(|it| **it != nobody());
        match (self.wanted.get(&key), owner) {
            (Some(server), _) => write!(f, " ({})", server.owner()),
            (None, Some(name)) => write!(f, " ({name})"),
            (None, None) => Ok(()),
        }
    }
}

/// Returns the repairs of service addresses and of their device as one line; `None` without any.
pub(super) fn address_repairs(applied: &Applied<Changes>) -> Option<String> {
    let changes = &applied.changes;
    let done = changes.ops.iter().zip(applied.outcomes.iter());
    let done = done.filter(|(op, it)| it.is_ok() && changes.reason(op) == Reason::SummedDrift);
    let (mut device, mut addresses) = (None, Vec::new());
    for (op, _) in done {
        match op.address() {
            Some(address) => addresses.push(address),
            None => device = Some(op),
        }
    }
    applied::repairs(device, addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_repairs_of_addresses_are_one_line() {
        let addresses = (1..=9_u8).map(|last| [10, 96, 0, last].into());
        let mut ops = Ops::from_iter([Op::AddCarrier]);
        ops.extend(addresses.clone().map(|ip| Op::AddAddress(ip, None)));
        let mut applied = Applied {
            outcomes: ops.iter().map(|_| Ok(())).collect(),
            changes: Changes {
                ops,
                drifted: KernelParts {
                    addresses: addresses.collect(),
                    carrier: true,
                    ..KernelParts::default()
                },
            },
            ..Applied::default()
        };
        assert_eq!(
            address_repairs(&applied).unwrap(),
            "repaired drift: add device kube-ipvs0, and with it 9 service addresses (10.96.0.1, \
             10.96.0.2, 10.96.0.3, 10.96.0.4, 10.96.0.5, ..)"
        );
        applied.changes.ops = applied.changes.ops.iter().skip(9).collect();
        applied.outcomes = applied.changes.ops.iter().map(|_| Ok(())).collect();
        assert_eq!(
            address_repairs(&applied).unwrap(),
            "repaired drift: another program changed 1 service address (10.96.0.9); programmed again"
        );
        applied.changes.drifted = KernelParts::default();
        assert_eq!(address_repairs(&applied), None);
    }
}
