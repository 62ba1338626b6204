//! The numbers of the fields of an EndpointSlice, from `discovery/v1/generated.proto` of `k8s.io/api`.

use super::{
    Conditions, EndpointHints, EndpointObject, EndpointSliceObject, Hint, SlicePortObject,
};
use crate::api::protobuf::{FromProtobuf, ProtobufError, ProtobufField};

impl<'a> FromProtobuf<'a> for EndpointSliceObject<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.merge(&mut self.metadata)?,
            2 => field.element(&mut self.endpoints)?,
            3 => field.element(&mut self.ports)?,
            4 => self.address_type = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for EndpointObject<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => {
                let text = field.exact_text()?;
                self.addresses.0.get_or_insert(text);
            }
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
impl<'a> FromProtobuf<'a> for Conditions<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.ready = field.flag()?,
            2 => self.serving = field.flag()?,
            3 => self.terminating = field.flag()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for EndpointHints<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.for_zones.push(field.message()?),
            2 => self.for_nodes.push(field.message()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for Hint<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.name = field.exact_text()?;
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for SlicePortObject<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.exact_text()?,
            2 => self.protocol = field.exact_text()?,
            3 => self.port = field.exact_integer()?,
            _ => {}
        }
        Ok(())
    }
}
