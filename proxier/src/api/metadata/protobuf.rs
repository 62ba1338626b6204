//! The numbers of the fields of metadata, from `meta/v1/generated.proto` of `k8s.io/apimachinery`.

use super::{Labels, Metadata};
use crate::api::protobuf::{FromProtobuf, ProtobufError, ProtobufField, lossy};
use crate::api::scalar::Scalar;

impl<'a> FromProtobuf<'a> for Metadata<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?,
            3 => self.namespace = field.text()?,
            8 => self.creation_timestamp = field.time()?,
            9 => self.deletion_timestamp = field.time()?,
            11 => {
                let (name, value) = field.entry()?;
                if let Some(place) = self.labels.place(&lossy(name)) {
                    *place = lossy(value).into();
                }
            }
            12 => {
                let (name, value) = field.entry()?;
                if let Some(place) = self.annotations.place(&lossy(name)) {
                    *place = lossy(value).into();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Labels<'a> {
    /// Returns the place of a label's value; `None` if the proxy does not use the label.
    fn place(&mut self, name: &str) -> Option<&mut Scalar<'a>> {
        Some(match name {
            "kubernetes.io/service-name" => &mut self.service_name,
            "service.kubernetes.io/service-proxy-name" => &mut self.service_proxy_name,
            "service.kubernetes.io/headless" => &mut self.headless,
            "endpointslice.kubernetes.io/managed-by" => &mut self.managed_by,
            "endpointslice.kubernetes.io/skip-mirror" => &mut self.skip_mirror,
            "topology.kubernetes.io/zone" => &mut self.zone,
            "topology.kubernetes.io/region" => &mut self.region,
            _ => return None,
        })
    }
}
