//! `ServiceCIDR` objects on the wire.

use serde::Deserialize;

use super::metadata::Metadata;
use super::parser::Parser;
use super::protobuf::{Fields, FromProtobuf};
use super::scalar::Scalar;
use super::{WireObject, or_default};
use crate::cluster::model;
use crate::cluster::problem::Problem;
use crate::cluster::store::{Interner, Parsed};

/// `networking.k8s.io/v1` `ServiceCIDR`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(crate) struct ServiceCidrObject<'a> {
    #[serde(deserialize_with = "or_default")]
    metadata: Metadata<'a>,
    #[serde(deserialize_with = "or_default")]
    spec: ServiceCidrSpec<'a>,
}

impl<'a> FromProtobuf<'a> for ServiceCidrObject<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.merge(&mut it.metadata)),
        (2, |it, field| field.merge(&mut it.spec)),
    ];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct ServiceCidrSpec<'a> {
    #[serde(deserialize_with = "or_default")]
    cidrs: Vec<Scalar<'a>>,
}

impl<'a> FromProtobuf<'a> for ServiceCidrSpec<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.push_text(&mut it.cidrs))];
}

impl WireObject for ServiceCidrObject<'_> {
    type Object = model::ServiceCidr;

    /// A ServiceCIDR with a deletion timestamp is used like any other: its finalizer keeps it while
    /// addresses of its ranges are in use.
    fn parse(&self, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        let name = self.metadata.cluster_object_name("ServiceCIDR")?;
        Ok(Parser::parse(
            "ServiceCIDR",
            name,
            interner,
            |name, parser| {
                Some(model::ServiceCidr {
                    name: name.name().into(),
                    ranges: parser.networks("spec.cidrs", &self.spec.cidrs),
                })
            },
        ))
    }
}
