//! The settings of a sharded model: warpweft's configuration, or candle's optimizer.

use candle_nn::ParamsAdamW;
use warpweft::config::Config;

/// The settings for [`Sharded::new`](crate::Sharded::new): a [`Config`], or candle's [`ParamsAdamW`], which becomes
/// one:
///
/// | candle | warpweft |
/// |---|---|
/// | `lr` | `optimizer.lr` |
/// | `beta1`, `beta2` | `optimizer.beta1`, `optimizer.beta2` |
/// | `eps` | `optimizer.eps` |
/// | `weight_decay` | `optimizer.weight_decay`, decoupled (`optimizer.mode = "adamw"`) |
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
}

impl From<Config> for Settings {
    fn from(config: Config) -> Self {
        Self { config }
    }
}

impl From<ParamsAdamW> for Settings {
    fn from(ParamsAdamW { lr, beta1, beta2, eps, weight_decay }: ParamsAdamW) -> Self {
        let mut config = Config::default();
        let optimizer = &mut config.optimizer;
        (optimizer.lr, optimizer.eps, optimizer.weight_decay) = (lr, eps, weight_decay);
        (optimizer.beta1, optimizer.beta2) = (beta1, beta2);
        Self { config }
    }
}
