//! Why an endpoint gets no new connections, in a few words.

use crate::plan::{LeftOut, Surveyed};

/// Returns why an endpoint gets no new connections, as the planner decided; `None` if it gets some.
pub(super) fn reason(endpoint: &Surveyed) -> Option<&'static str> {
    Some(match endpoint.result {
        Ok(0) if endpoint.is_silenced => {
            "answers nobody (annotation ipvs-proxier.io/passive-health)"
        }
        Ok(0) => "weight 0 (annotation ipvs-proxier.io/weights)",
        Ok(_) => return None,
        Err(LeftOut::OtherNode) => "on another node (traffic policy Local)",
        Err(LeftOut::NotReady) => "not ready",
        Err(LeftOut::Terminating) => "terminating, and others are ready",
        Err(LeftOut::Gone) => "terminating",
        Err(LeftOut::NodeHint | LeftOut::ZoneHint) => {
            "its topology hints name other zones or nodes"
        }
        Err(LeftOut::Key(_) | LeftOut::NoKey) => {
            "others are nearer (annotation ipvs-proxier.io/topology-keys)"
        }
    })
}
