//! The numbers of the fields of a Service, from `core/v1/generated.proto` of `k8s.io/api`.

use super::{
    AffinityConfig, ClientIpConfig, Ingress, LoadBalancerStatus, PortObject, ServiceObject,
    ServiceSpec, ServiceStatus,
};
use crate::api::protobuf::{FromProtobuf, ProtobufError, ProtobufField};

impl<'a> FromProtobuf<'a> for ServiceObject<'a> {
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

impl<'a> FromProtobuf<'a> for ServiceSpec<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.element(&mut self.ports)?,
            // The selector, 2, decides about manifests only.
            3 => self.cluster_ip = field.text()?,
            4 => self.r#type = field.text()?,
            5 => self.external_ips.push(field.exact_text()?),
            7 => self.session_affinity = field.text()?,
            9 => self.load_balancer_source_ranges.push(field.exact_text()?),
            11 => self.external_traffic_policy = field.text()?,
            12 => self.health_check_node_port = field.integer()?,
            14 => field.merge(&mut self.session_affinity_config)?,
            17 => self.ip_family_policy = field.exact_text()?,
            18 => self.cluster_ips.push(field.exact_text()?),
            19 => self.ip_families.push(field.exact_text()?),
            20 => self.allocate_load_balancer_node_ports = field.flag()?,
            22 => self.internal_traffic_policy = field.exact_text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for PortObject<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?,
            2 => self.protocol = field.text()?,
            3 => self.port = field.exact_integer()?,
            5 => self.node_port = field.integer()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for AffinityConfig<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            field.merge(&mut self.client_ip)?;
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for ClientIpConfig<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.timeout_seconds = field.exact_integer()?;
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for ServiceStatus<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            field.merge(&mut self.load_balancer)?;
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for LoadBalancerStatus<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.ingress.push(field.message()?);
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for Ingress<'a> {
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.ip = field.text()?,
            3 => self.ip_mode = field.exact_text()?,
            _ => {}
        }
        Ok(())
    }
}
