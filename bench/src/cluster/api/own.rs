//! The API server of this process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use api_server::{ApiServer, tls};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;

use super::{Api, PORT};
use crate::cluster::clients::Echo;
use crate::cluster::population::Population;

pub(super) struct OwnApi {
    server: ApiServer,
    /// The endpoint of `default/kubernetes`.
    _echo: Echo,
}

impl OwnApi {
    pub(super) fn start(population: &Population) -> anyhow::Result<Self> {
        let server = ApiServer::start_secure();
        // Enough for 20 s at 1,000 changes per second. A real server keeps the changes of about 75
        // s.
        server.limit_history(20_000);
        let endpoint = SocketAddr::from((super::endpoint(population)?, PORT));
        Ok(Self {
            server,
            _echo: Echo::start(endpoint)?,
        })
    }
}

impl Api for OwnApi {
    fn fill(&mut self, population: &Population, progress: &dyn Fn(u32)) -> anyhow::Result<()> {
        let (service, slice) = population.api_objects(PORT);
        self.server.apply(service);
        self.server.apply(slice);
        for (object, number) in population.objects().zip(1..) {
            self.server.apply(object);
            progress(number);
        }
        Ok(())
    }

    fn replace(&mut self, slice: EndpointSlice) -> anyhow::Result<()> {
        self.server.apply(slice);
        Ok(())
    }

    fn kubeconfig(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let authority = folder.join("authority.pem");
        std::fs::write(&authority, tls::AUTHORITY)?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "lab",
                "cluster": {"server": self.server.url(), "certificate-authority": authority},
            }],
            "users": [{"name": "lab", "user": {"token": "secret"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "current-context": "lab",
        });
        let file = folder.join("kubeconfig");
        std::fs::write(&file, config.to_string())?;
        Ok(file)
    }

    fn has_echo(&self) -> bool {
        true
    }

    fn forget_versions(&mut self) -> anyhow::Result<()> {
        self.server.compact();
        self.server.break_connections();
        Ok(())
    }

    fn reset_watches(&mut self) -> anyhow::Result<()> {
        self.server.break_connections();
        Ok(())
    }

    fn set_gone(&mut self) -> anyhow::Result<()> {
        self.server.refuse();
        Ok(())
    }

    fn set_slow(&mut self) -> anyhow::Result<()> {
        self.server.freeze();
        Ok(())
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.server.resume();
        Ok(())
    }

    fn last_list(&self) -> Option<Instant> {
        self.server.last_list()
    }
}
