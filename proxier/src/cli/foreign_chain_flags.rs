//! Flags about chains of other programs that drop packets of Services.

use clap::{Args, ValueEnum};

use super::dataplane_flags::DataplaneKind;
use crate::dataplane::ipvs::filter::MarkBit;
use crate::host::{Treatment, Treatments};

/// Flags about chains of other programs that drop packets of Services.
#[derive(Args, Debug)]
pub(super) struct ForeignChainFlags {
    /// What to do if a forward chain of another program drops packets of Services: with IPVS the answers of endpoints,
    /// with nftables requests too. kube-proxy has no such flag.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "accept")]
    forward_drop: DropTreatment,

    /// What to do if an input chain of another program (a host firewall) drops packets for frontends.
    /// kube-proxy has no such flag.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "warn")]
    input_drop: DropTreatment,

    /// Bit of the packet mark that packets of Services have while they pass input chains of other programs with
    /// --input-drop=accept, and with nftables forward chains with --forward-drop=accept: 0 to 31. No other
    /// program may use it there.
    #[arg(long, value_name = "BIT", default_value = "12", value_parser = mark_bit)]
    input_accept_bit: MarkBit,
}

/// [`Treatment`] as the command line spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DropTreatment {
    /// Insert a rule at the head of the chain that accepts these packets, and only these.
    Accept,
    /// Log a warning only.
    Warn,
}

fn mark_bit(text: &str) -> Result<MarkBit, String> {
    let number = text.parse().ok();
    let bit = number.and_then(MarkBit::new);
    bit.ok_or_else(|| "is not a bit number from 0 to 31".to_owned())
}

impl From<DropTreatment> for Treatment {
    fn from(value: DropTreatment) -> Self {
        match value {
            DropTreatment::Accept => Self::Accept,
            DropTreatment::Warn => Self::Warn,
        }
    }
}

impl ForeignChainFlags {
    /// Returns the treatments of chains beside this dataplane.
    pub(super) fn treatments(&self, kind: DataplaneKind) -> Treatments {
        Treatments {
            forward: self.forward_drop.into(),
            input: self.input_drop.into(),
            mark: self.input_accept_bit.mark(),
            are_translated: kind == DataplaneKind::Nftables,
        }
    }

    /// Returns the bits that packets of Services get at the input and at the forward hook; `None` if no rule of ours
    /// accepts them by it.
    pub(super) fn accept_bits(&self, kind: DataplaneKind) -> [Option<MarkBit>; 2] {
        let bit = |treatment| (treatment == DropTreatment::Accept).then_some(self.input_accept_bit);
        // With IPVS, only answers are forwarded, and these need no mark.
        let forward = bit(self.forward_drop).filter(|_| kind == DataplaneKind::Nftables);
        [bit(self.input_drop), forward]
    }
}
