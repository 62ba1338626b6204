//! All endpoints of a Service port, those that do not serve too, with the reason.

use std::net::SocketAddr;

use super::{LeftOut, Selection, Weighing, candidates, topology_keys};
use crate::cluster::model::{
    Endpoint, EndpointSlice, Family, ObjectName, Service, ServicePort, TrafficPolicy,
};
use crate::cluster::store::Snapshot;
use crate::plan::endpoints::Topology;
use crate::plan::{PlanConfig, Standings};

/// An endpoint of a Service port, as the planner judges it for a traffic policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Surveyed {
    /// Its address and port.
    pub(crate) address: SocketAddr,
    /// The endpoint.
    pub(crate) endpoint: Endpoint,
    /// The slice that has it.
    pub(crate) slice: ObjectName,
    /// Its weight, or why it does not serve.
    pub(crate) result: Result<u16, LeftOut>,
    /// Whether its weight is smaller because it is new.
    pub(crate) is_new: bool,
    /// Whether it has weight 0 because it does not answer.
    pub(crate) is_silenced: bool,
}

/// Returns every endpoint of `port` of `service`, ordered by address, as the plan judges it.
pub(crate) fn survey(
    (snapshot, config, standings): (&Snapshot, &PlanConfig, &Standings),
    (service, port): (&Service, &ServicePort),
    family: Family,
    policy: TrafficPolicy,
) -> Vec<Surveyed> {
    let topology = Topology::new(&config.node_name, snapshot);
    let slices: Vec<&EndpointSlice> = snapshot.slices(&service.name).collect();
    let (keys, weighing) = (
        topology_keys(service),
        Weighing::of(service, config, standings),
    );
    let all = candidates(&slices, port, family);
    let selection = Selection::of(&all, policy, keys, &topology);
    let selected = all.iter().map(|it| it.1);
    let selected = selected.filter(|endpoint| selection.check(endpoint, &topology).is_ok());
    let weighing = weighing.among(selected, &topology);
    let slice_of = |endpoint: &Endpoint| {
        let has = |slice: &&&EndpointSlice| {
            let range = slice.endpoints.as_ptr_range();
            range.contains(&std::ptr::from_ref(endpoint))
        };
        slices.iter().find(has).map(|slice| slice.name.clone())
    };
    let judge = |&(address, endpoint): &(SocketAddr, &Endpoint)| Surveyed {
        address,
        endpoint: endpoint.clone(),
        slice: slice_of(endpoint).unwrap_or_default(),
        result: selection
            .check(endpoint, &topology)
            .map(|()| weighing.weight(endpoint, &topology)),
        is_new: weighing.is_reduced(endpoint),
        is_silenced: weighing.is_silenced(endpoint),
    };
    all.iter().map(judge).collect()
}
