//! The log line of repaired service addresses.

use crate::dataplane::ipvs::Applied;
use crate::dataplane::ipvs::op::Op;

/// The maximum number of addresses that the line names.
const SAMPLES: usize = 5;

/// Returns whether [`line()`] mentions `op`, so that it needs no line of its own.
pub(super) fn is_covered(applied: &Applied, op: &Op) -> bool {
    op.service_key().is_none() && applied.is_repair(op)
}

/// Returns the repairs of service addresses and of their device as one line; `None` without any.
///
/// One line, because one command such as `ip route flush` may delete 10,000 addresses.
pub(super) fn line(applied: &Applied) -> Option<String> {
    let done = applied.ops.iter().zip(applied.outcomes.iter());
    let done = done.filter(|(op, outcome)| outcome.is_ok() && is_covered(applied, op));
    let (mut device, mut addresses) = (None, Vec::new());
    for (op, _) in done {
        match op.address() {
            Some(address) => addresses.push(address.to_string()),
            None => device = Some(op),
        }
    }
    if device.is_none() && addresses.is_empty() {
        return None;
    }
    // An address may be in two Ops: added in one form, deleted in another.
    addresses.dedup();
    let count = addresses.len();
    let noun = if count == 1 { "address" } else { "addresses" };
    let etc = if count > SAMPLES { ", .." } else { "" };
    let samples = addresses[..count.min(SAMPLES)].join(", ");
    let addresses = format!("{count} service {noun} ({samples}{etc})");
    Some(match (device, count) {
        (None, _) => {
            format!("repaired drift: another program changed {addresses}; programmed again")
        }
        (Some(op), 0) => format!("repaired drift: {op}"),
        (Some(op), _) => format!("repaired drift: {op}, and with it {addresses}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ipvs::KernelParts;
    use crate::dataplane::ipvs::op::Ops;

    #[test]
    fn all_repairs_of_addresses_are_one_line() {
        let addresses = (1..=9_u8).map(|last| [10, 96, 0, last].into());
        let mut ops = Ops::from_iter([Op::AddCarrier]);
        ops.extend(addresses.clone().map(|ip| Op::AddAddress(ip, None)));
        let mut applied = Applied {
            outcomes: ops.iter().map(|_| Ok(())).collect(),
            ops,
            drifted: KernelParts {
                addresses: addresses.collect(),
                carrier: true,
                ..KernelParts::default()
            },
            ..Applied::default()
        };
        assert_eq!(
            line(&applied).unwrap(),
            "repaired drift: add device kube-ipvs0, and with it 9 service addresses (10.96.0.1, \
             10.96.0.2, 10.96.0.3, 10.96.0.4, 10.96.0.5, ..)"
        );
        applied.ops = applied.ops.iter().skip(9).collect();
        applied.outcomes = applied.ops.iter().map(|_| Ok(())).collect();
        assert_eq!(
            line(&applied).unwrap(),
            "repaired drift: another program changed 1 service address (10.96.0.9); programmed again"
        );
        applied.drifted = KernelParts::default();
        assert_eq!(line(&applied), None);
    }
}
