//! The API server of a run.

use std::path::{Path, PathBuf};

use api_server::{ApiServer, tls};
use clap::ValueEnum;
use serde_json::{Value, json};

/// Which API server serves the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApiKind {
    /// The server in this process.
    #[default]
    Own,
}

impl ApiKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
        }
    }
}

/// A running API server.
pub(crate) enum Api {
    Own(ApiServer),
}

impl Api {
    pub(crate) fn start(kind: ApiKind) -> Self {
        match kind {
            ApiKind::Own => {
                let server = ApiServer::start_secure();
                // Twenty seconds of 1,000 changes each; a real server keeps about 75.
                server.limit_history(20_000);
                Self::Own(server)
            }
        }
    }

    /// Creates the objects of a cluster.
    pub(crate) fn fill(&self, objects: impl Iterator<Item = Value>) -> anyhow::Result<()> {
        for object in objects {
            self.replace(object)?;
        }
        Ok(())
    }

    /// Replaces an object.
    pub(crate) fn replace(&self, object: Value) -> anyhow::Result<()> {
        match self {
            Self::Own(server) => server.apply(object),
        }
        Ok(())
    }

    /// Writes the file that names this server to a proxy.
    pub(crate) fn kubeconfig(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let Self::Own(server) = self;
        let authority = folder.join("authority.pem");
        std::fs::write(&authority, tls::AUTHORITY)?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "lab",
                "cluster": {"server": server.url(), "certificate-authority": authority},
            }],
            "users": [{"name": "lab", "user": {"token": "secret"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "current-context": "lab",
        });
        let file = folder.join("kubeconfig");
        std::fs::write(&file, config.to_string())?;
        Ok(file)
    }

    /// Ends all watches and expires their resource versions.
    pub(crate) fn forget_versions(&self) -> anyhow::Result<()> {
        let Self::Own(server) = self;
        server.compact();
        server.break_connections();
        Ok(())
    }

    /// Ends all connections; watches can continue.
    pub(crate) fn reset_watches(&self) -> anyhow::Result<()> {
        let Self::Own(server) = self;
        server.break_connections();
        Ok(())
    }

    /// Refuses connections until [`Api::resume`].
    pub(crate) fn set_gone(&self) -> anyhow::Result<()> {
        let Self::Own(server) = self;
        server.refuse();
        Ok(())
    }

    /// Accepts requests but answers none until [`Api::resume`].
    pub(crate) fn set_slow(&self) -> anyhow::Result<()> {
        let Self::Own(server) = self;
        server.freeze();
        Ok(())
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        let Self::Own(server) = self;
        server.resume();
        Ok(())
    }
}
