//! Flags about chains of other programs that drop packets of Services.

use clap::{Args, ValueEnum};

use crate::dataplane::ipvs::filter::MarkBit;
use crate::host::{Treatment, Treatments};

/// The flag about forward chains.
#[derive(Args, Debug)]
pub(super) struct ForwardDropFlag {
    /// What to do if a forward chain of another program drops the answers of endpoints. kube-proxy has
    /// no such flag.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "accept")]
    forward_drop: DropTreatment,
}

/// The flags about input chains. The packet rules depend on them too.
#[derive(Args, Debug)]
pub(super) struct InputDropFlags {
    /// What to do if an input chain of another program (a host firewall) drops packets for frontends.
    /// kube-proxy has no such flag.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "warn")]
    input_drop: DropTreatment,

    /// Bit of the packet mark that packets for frontends have while they pass input chains of other
    /// programs, with --input-drop=accept: 0 to 31. No other program may use it there.
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

impl ForwardDropFlag {
    /// Returns the treatments of both hooks.
    pub(super) fn treatments(&self, input: &InputDropFlags) -> Treatments {
        Treatments {
            answers: self.forward_drop.into(),
            frontends: input.input_drop.into(),
            frontend_mark: input.input_accept_bit.mark(),
        }
    }
}

impl InputDropFlags {
    /// Returns the bit that packets for frontends get; `None` if no rule of ours accepts them by it.
    pub(super) fn accept_bit(&self) -> Option<MarkBit> {
        (self.input_drop == DropTreatment::Accept).then_some(self.input_accept_bit)
    }
}
