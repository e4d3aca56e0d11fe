//! An axis of the mesh on a command line: `tp=2`.
//!
//! Law: axes have the names that the configuration's table `mesh` gives them.

use std::str::FromStr;

use warpweft_session::config::MeshAxes;

/// How many ranks an axis has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeshAxis {
    /// Replicas of the model.
    DpReplicate(u32),
    /// Ranks that weights are sharded over, with texts of their own.
    DpShard(u32),
    /// Ranks that share the tokens of a text.
    Cp(u32),
    /// Ranks that compute the parts of one layer.
    Tp(u32),
    /// Ranks that share the experts.
    Ep(u32),
    /// Ranks that one expert is sharded over.
    EpShard(u32),
    /// Blocks of replicas that each keep all optimizer state.
    OptimizerInstances(u32),
}

impl MeshAxis {
    /// Sets the axis, and says which key of a configuration that is.
    pub(super) const fn set(self, axes: &mut MeshAxes) -> &'static str {
        match self {
            Self::DpReplicate(ranks) => {
                axes.dp_replicate = Some(ranks);
                "mesh.dp_replicate"
            }
            Self::DpShard(ranks) => {
                axes.dp_shard = Some(ranks);
                "mesh.dp_shard"
            }
            Self::Cp(ranks) => {
                axes.cp = ranks;
                "mesh.cp"
            }
            Self::Tp(ranks) => {
                axes.tp = ranks;
                "mesh.tp"
            }
            Self::Ep(ranks) => {
                axes.ep = ranks;
                "mesh.ep"
            }
            Self::EpShard(ranks) => {
                axes.ep_shard = Some(ranks);
                "mesh.ep_shard"
            }
            Self::OptimizerInstances(instances) => {
                axes.optimizer_instances = instances;
                "mesh.optimizer_instances"
            }
        }
    }
}

impl FromStr for MeshAxis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((axis, number)) = text.split_once('=') else {
            return Err("give an axis and how many ranks it has, such as tp=2".to_owned());
        };
        let ranks = number.trim().parse::<u32>().ok().filter(|ranks| *ranks > 0);
        let ranks = ranks.ok_or_else(|| format!("{axis} takes a whole number from 1 up"))?;
        match axis.trim() {
            "dp_replicate" => Ok(Self::DpReplicate(ranks)),
            "dp_shard" => Ok(Self::DpShard(ranks)),
            "cp" => Ok(Self::Cp(ranks)),
            "tp" => Ok(Self::Tp(ranks)),
            "ep" => Ok(Self::Ep(ranks)),
            "ep_shard" => Ok(Self::EpShard(ranks)),
            "optimizer_instances" => Ok(Self::OptimizerInstances(ranks)),
            _ => {
                Err("axes of a mesh are dp_replicate, dp_shard, cp, tp, ep, ep_shard and optimizer_instances"
                    .to_owned())
            }
        }
    }
}

/// An axis, or that the others are to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeshChoice {
    /// Axes that are not given are to be found.
    Auto,
    /// How many ranks an axis has.
    Axis(MeshAxis),
}

impl FromStr for MeshChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Axis) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_a_name_and_a_number_of_ranks() {
        let mut axes = MeshAxes::default();
        for (text, key) in [
            ("dp_replicate=2", "mesh.dp_replicate"),
            ("dp_shard=3", "mesh.dp_shard"),
            ("cp=4", "mesh.cp"),
            ("tp = 5", "mesh.tp"),
            ("ep=6", "mesh.ep"),
            ("ep_shard=7", "mesh.ep_shard"),
            ("optimizer_instances=8", "mesh.optimizer_instances"),
        ] {
            assert_eq!(text.parse::<MeshAxis>().map(|axis| axis.set(&mut axes)), Ok(key));
        }
        let dense =
            MeshAxes { dp_replicate: Some(2), dp_shard: Some(3), cp: 4, tp: 5, ..MeshAxes::default() };
        assert_eq!(axes, MeshAxes { ep: 6, ep_shard: Some(7), optimizer_instances: 8, ..dense });
        for wrong in ["tp", "tp=", "tp=0", "tp=two", "pp=2", "=2"] {
            assert!(wrong.parse::<MeshAxis>().is_err(), "{wrong}");
        }
    }
}
