//! The numbers of the fields of a Node, from `core/v1/generated.proto` of `k8s.io/api`.

use super::{NodeAddress, NodeLabels, NodeObject, NodeSpec, NodeStatus, Taint};
use crate::api::protobuf::{FromProtobuf, ProtobufError, ProtobufField};

impl<'a> FromProtobuf<'a> for NodeObject<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.merge(&mut self.metadata)?,
            2 => field.merge(&mut self.spec)?,
            3 => field.merge(&mut self.status)?,
            _ => {}
        }
        Ok(())
    }
}

/// `metadata` has the same number in a Node and in `PartialObjectMetadata`.
impl<'a> FromProtobuf<'a> for NodeLabels<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            field.merge(&mut self.metadata)?;
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for NodeSpec<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.pod_cidr = field.text()?,
            5 => self.taints.push(field.message()?),
            7 => self.pod_cidrs.push(field.exact_text()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for Taint<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.key = field.text()?;
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for NodeStatus<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 5 {
            self.addresses.push(field.message()?);
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for NodeAddress<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.r#type = field.text()?,
            2 => self.address = field.text()?,
            _ => {}
        }
        Ok(())
    }
}
