//! kube-apiserver and etcd.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail};
use api_server::Key;
use api_server::control_plane::{ControlPlane, Site};
use http::Method;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{Api, PORT};
use crate::cluster::population::Population;

pub(super) struct RealApi {
    plane: ControlPlane,
    /// The namespaces that exist.
    namespaces: BTreeSet<String>,
    /// The port on which the server starts again; `None` while it runs.
    away_from: Option<u16>,
}

impl RealApi {
    pub(super) fn start(population: &Population) -> anyhow::Result<Self> {
        let assets = ControlPlane::assets().context(
            "--api real: KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver",
        )?;
        let site = Site {
            bind: Ipv4Addr::UNSPECIFIED.into(),
            endpoint: super::endpoint(population)?,
            port: Some(PORT),
            service_ranges: population.service_ranges(),
        };
        Ok(Self {
            plane: ControlPlane::start(assets, site),
            namespaces: ["default".to_owned()].into(),
            away_from: None,
        })
    }

    fn create(&self, path: &str, object: &Value) -> anyhow::Result<()> {
        let created = self.plane.ask(Method::POST, path, object);
        created.with_context(|| format!("creating an object of {path}"))?;
        Ok(())
    }

    fn restart(&mut self) {
        self.plane.stop_server();
        self.plane.start_server();
    }
}

impl Api for RealApi {
    fn fill(&mut self, population: &Population, progress: &dyn Fn(u32)) -> anyhow::Result<()> {
        // The server creates `default/kubernetes` itself.
        for (mut object, number) in population.objects().zip(1..) {
            let key = Key::of(&object).context("an object without kind or name")?;
            if !key.namespace.is_empty() && self.namespaces.insert(key.namespace.clone()) {
                let namespace = json!({"metadata": {"name": key.namespace}});
                self.create("/api/v1/namespaces", &namespace)?;
            }
            without_server_fields(&mut object);
            self.create(&collection(&key), &object)?;
            progress(number);
        }
        Ok(())
    }

    fn replace(&mut self, slice: EndpointSlice) -> anyhow::Result<()> {
        let mut object = json!(slice);
        let key = Key::of(&object).context("an object without kind or name")?;
        without_server_fields(&mut object);
        let path = format!("{}/{}", collection(&key), key.name);
        let answer = match self.plane.ask(Method::PATCH, &path, &object) {
            // A Service that grew needs another slice, which does not exist yet.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.plane.ask(Method::POST, &collection(&key), &object)
            }
            other => other,
        };
        answer.with_context(|| format!("changing {path}"))?;
        Ok(())
    }

    fn kubeconfig(&self, _folder: &Path) -> anyhow::Result<PathBuf> {
        Ok(self.plane.follower())
    }

    fn has_echo(&self) -> bool {
        false
    }

    fn forget_versions(&mut self) -> anyhow::Result<()> {
        // A restart empties the server's cache, which would serve older versions than etcd.
        self.plane.compact();
        self.restart();
        Ok(())
    }

    fn reset_watches(&mut self) -> anyhow::Result<()> {
        self.restart();
        Ok(())
    }

    fn set_gone(&mut self) -> anyhow::Result<()> {
        self.away_from = Some(self.plane.move_away());
        Ok(())
    }

    fn set_slow(&mut self) -> anyhow::Result<()> {
        bail!("a real server that answers nothing accepts no changes either; use --phases")
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        if let Some(port) = self.away_from.take() {
            self.plane.return_to(port);
            self.plane.start_server();
        }
        Ok(())
    }

    fn last_list(&self) -> Option<Instant> {
        None
    }
}

/// Returns the path of the objects of a kind and namespace.
fn collection(key: &Key) -> String {
    let group = match &*key.plural {
        "endpointslices" => "/apis/discovery.k8s.io/v1",
        _ => "/api/v1",
    };
    match &*key.namespace {
        "" => format!("{group}/{}", key.plural),
        namespace => format!("{group}/namespaces/{namespace}/{}", key.plural),
    }
}

/// Removes the fields that a server sets itself, and refuses from a client.
fn without_server_fields(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "uid",
            "creationTimestamp",
            "managedFields",
            "ownerReferences",
        ] {
            metadata.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_paths() {
        let path = |kind, namespace| collection(&Key::new(kind, namespace, "x").unwrap());
        assert_eq!(path("Node", ""), "/api/v1/nodes");
        assert_eq!(path("Service", "a"), "/api/v1/namespaces/a/services");
        assert_eq!(
            path("EndpointSlice", "a"),
            "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices"
        );
    }
}
