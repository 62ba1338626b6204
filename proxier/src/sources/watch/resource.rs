//! The kinds that are watched.

use serde::Deserialize;

use super::encoding::ObjectForm;
use crate::cluster::api::{self, FromProtobuf, WireObject};
use crate::cluster::model;
use crate::cluster::problem::Problem;
use crate::cluster::store::{Event, Update};

/// A kind that can be listed and watched.
pub(super) trait Resource: Send + 'static {
    /// The type of its objects on the wire.
    type Wire<'a>: Deserialize<'a> + FromProtobuf<'a> + WireObject<Object = Self::Object>;
    /// The type of its objects in the model.
    type Object: Send;

    /// The kind's name.
    const KIND: &'static str;
    /// The kind's plural name in messages.
    const PLURAL: &'static str;
    /// The path of the collection.
    const PATH: &'static str;
    /// The label selector.
    const LABELS: Option<&'static str> = None;
    /// The field selector.
    const FIELDS: Option<&'static str> = None;
    /// Whether the proxy works without the kind if the server lacks it or denies access to it.
    const IS_OPTIONAL: bool = false;
    /// The part of the objects that is requested.
    const FORM: ObjectForm = ObjectForm::Whole;

    /// Converts an update to an event, or `None` if it changes nothing.
    ///
    /// A kind whose events carry no problems keeps them up to date in `problems`.
    fn event(change: Update<Self::Object>, problems: &mut Vec<Problem>) -> Option<Event>;
}

/// All Services except headless ones and those of another proxy: the selectors of kube-proxy 1.36.
/// The field selector needs a server of at least 1.23.
pub(super) struct Services;

impl Resource for Services {
    type Wire<'a> = api::ServiceObject<'a>;
    type Object = model::Service;

    const KIND: &'static str = "Service";
    const PLURAL: &'static str = "Services";
    const PATH: &'static str = "/api/v1/services";
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/service-proxy-name");
    const FIELDS: Option<&'static str> = Some("spec.clusterIP!=None");

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::Services(change))
    }
}

/// All EndpointSlices except those of headless Services, as kube-proxy 1.36.
///
/// Slices of another proxy's Services are included. A slice's `service-proxy-name` label is a copy
/// that may lag behind the label of its Service.
pub(super) struct EndpointSlices;

impl Resource for EndpointSlices {
    type Wire<'a> = api::EndpointSliceObject<'a>;
    type Object = model::EndpointSlice;

    const KIND: &'static str = "EndpointSlice";
    const PLURAL: &'static str = "EndpointSlices";
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/headless");

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::EndpointSlices(change))
    }
}

/// Our own Node; the follower selects it by name.
pub(super) struct OwnNode;

impl Resource for OwnNode {
    type Wire<'a> = api::NodeObject<'a>;
    type Object = model::Node;

    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "our Node";
    const PATH: &'static str = "/api/v1/nodes";

    /// Sends no event if our Node was deleted or cannot be read. As in kube-proxy, its last readable
    /// state stays in use, so traffic continues.
    fn event(change: Update<Self::Object>, problems: &mut Vec<Problem>) -> Option<Event> {
        let node = match change {
            Update::Apply(node) => {
                // Not for a list, which has cleared the problems before it was read.
                problems.clear();
                Some(node)
            }
            Update::Reset(all) | Update::Merge(all) => all.into_iter().next(),
            Update::Delete(_) => None,
        }?;
        problems.extend(node.problems);
        node.object.map(Event::Node)
    }
}

/// The ranges of cluster IPs; servers before 1.33 lack the kind.
pub(super) struct ServiceCidrs;

impl Resource for ServiceCidrs {
    type Wire<'a> = api::ServiceCidrObject<'a>;
    type Object = model::ServiceCidr;

    const KIND: &'static str = "ServiceCIDR";
    const PLURAL: &'static str = "ServiceCIDRs";
    const PATH: &'static str = "/apis/networking.k8s.io/v1/servicecidrs";
    const IS_OPTIONAL: bool = true;

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::ServiceCidrs(change))
    }
}

/// The locations of all nodes. Only their metadata is requested.
pub(super) struct Nodes;

impl Resource for Nodes {
    type Wire<'a> = api::NodeLabels<'a>;
    type Object = model::NodeLocation;

    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "Nodes";
    const PATH: &'static str = "/api/v1/nodes";
    const FORM: ObjectForm = ObjectForm::Metadata;

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::Nodes(change))
    }
}
