//! Where virtual servers are, in words of the rules.

use ipvs_netlink as ipvs;

use crate::model::Protocol;
use crate::rules::Place;

/// The virtual server that is there.
pub(super) fn key(place: &Place) -> ipvs::ServiceKey {
    ipvs::ServiceKey::Address {
        protocol: match place.protocol {
            Protocol::Tcp => ipvs::Protocol::Tcp,
            Protocol::Udp => ipvs::Protocol::Udp,
            Protocol::Sctp => ipvs::Protocol::Sctp,
        },
        address: place.address,
        port: place.port,
    }
}

/// Where a virtual server with an address is.
pub(super) fn place(key: &ipvs::ServiceKey) -> Option<Place> {
    let ipvs::ServiceKey::Address {
        protocol,
        address,
        port,
    } = *key
    else {
        return None;
    };
    let protocol = match protocol {
        ipvs::Protocol::Tcp => Protocol::Tcp,
        ipvs::Protocol::Udp => Protocol::Udp,
        ipvs::Protocol::Sctp => Protocol::Sctp,
        // None that a Service can have.
        _ => return None,
    };
    Some(Place {
        address,
        protocol,
        port,
    })
}
