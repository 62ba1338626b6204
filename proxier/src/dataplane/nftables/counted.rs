//! The counters of connections in the kernel's table, for the metrics of Services.

use nftables::RulesClient;
use rustix::io::Errno;

use super::affinity::frontend;
use super::{TABLE, chains};
use crate::dataplane::Failure;
use crate::dataplane::packet_rules::FAMILIES;
use crate::plan::frontend::Frontend;

/// Reads the number of new connections of each counted frontend since its counter exists; none if there is no table.
///
/// # Cost
/// A dump of the counters, of which there are at most `--service-metrics-limit`.
///
/// # Errors
/// If the kernel cannot be read.
pub(crate) fn counted() -> Result<Vec<(Frontend, u64)>, Failure> {
    let mut client = RulesClient::open(TABLE).map_err(Failure::netfilter_socket)?;
    let mut counted = Vec::new();
    for family in FAMILIES {
        let set = chains::counters(family);
        match client.read_counters(&set) {
            Ok(counters) => {
                let counters = counters.into_iter();
                counted.extend(counters.filter_map(|(key, count)| Some((frontend(&key)?, count))));
            }
            Err(error) if error.errno() == Some(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(counted)
}
