//! The numbers of the fields of an EndpointSlice, from `discovery/v1/generated.proto` of `k8s.io/api`.

use super::{
    Conditions, EndpointHints, EndpointObject, EndpointSliceObject, Hint, SlicePortObject,
};
use crate::api::protobuf::{FromProtobuf, ProtobufError, ProtobufField};

impl FromProtobuf for EndpointSliceObject {
    fn read_field(&mut self, field: ProtobufField<'_>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.merge(&mut self.metadata)?,
            2 => self.endpoints.push(field.message()?),
            3 => self.ports.push(field.message()?),
            4 => self.address_type = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl FromProtobuf for EndpointObject {
    fn read_field(&mut self, field: ProtobufField<'_>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.addresses.push(field.exact_text()?),
            2 => field.merge(&mut self.conditions)?,
            6 => self.node_name = field.exact_text()?,
            7 => self.zone = field.exact_text()?,
            8 => field.merge(&mut self.hints)?,
            _ => {}
        }
        Ok(())
    }
}

/// All three are pointers in Go: an absent one differs from `false`.
impl FromProtobuf for Conditions {
    fn read_field(&mut self, field: ProtobufField<'_>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.ready = field.flag()?,
            2 => self.serving = field.flag()?,
            3 => self.terminating = field.flag()?,
            _ => {}
        }
        Ok(())
    }
}

impl FromProtobuf for EndpointHints {
    fn read_field(&mut self, field: ProtobufField<'_>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.for_zones.push(field.message()?),
            2 => self.for_nodes.push(field.message()?),
            _ => {}
        }
        Ok(())
    }
}

impl FromProtobuf for Hint {
    fn read_field(&mut self, field: ProtobufField<'_>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.name = field.exact_text()?;
        }
        Ok(())
    }
}

impl FromProtobuf for SlicePortObject {
    fn read_field(&mut self, field: ProtobufField<'_>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.exact_text()?,
            2 => self.protocol = field.exact_text()?,
            3 => self.port = field.exact_integer()?,
            _ => {}
        }
        Ok(())
    }
}
