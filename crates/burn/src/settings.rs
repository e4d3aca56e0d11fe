//! The settings of a sharded model: warpweft's configuration, or burn's optimizer.

use burn::optim::{AdamConfig, AdamWConfig};
use serde_json::Value;
use warpweft::config::Config;
use warpweft_plan::policy::AdamMode;

/// The settings for [`Sharded::new`](crate::Sharded::new): a [`Config`], or burn's [`AdamWConfig`] or [`AdamConfig`],
/// which becomes one. Their learning rate is that of [`Sharded::learning_rate`](crate::Sharded::learning_rate):
///
/// | burn | warpweft |
/// |---|---|
/// | `beta_1`, `beta_2` | `optimizer.beta1`, `optimizer.beta2` |
/// | `epsilon` | `optimizer.eps` |
/// | `AdamWConfig`'s `weight_decay` | `optimizer.weight_decay`, decoupled (`optimizer.mode = "adamw"`) |
/// | `AdamConfig`'s `weight_decay` | `optimizer.weight_decay`, of the gradient (`optimizer.mode = "adam"`) |
/// | `amsgrad`, `cautious_weight_decay`, `grad_clipping` | refused |
#[derive(Clone, Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// Does it have a learning rate? burn's optimizers get theirs in each step.
    pub(crate) has_rate: bool,
    /// A setting that nothing here does.
    pub(crate) refused: Option<&'static str>,
}

impl From<Config> for Settings {
    fn from(config: Config) -> Self {
        Self { config, has_rate: true, refused: None }
    }
}

impl From<AdamWConfig> for Settings {
    fn from(adam: AdamWConfig) -> Self {
        let written = serde_json::to_value(&adam).unwrap_or_default();
        of_burn(&written, AdamMode::AdamW, &written["weight_decay"])
    }
}

impl From<AdamConfig> for Settings {
    fn from(adam: AdamConfig) -> Self {
        let written = serde_json::to_value(&adam).unwrap_or_default();
        of_burn(&written, AdamMode::Adam, &written["weight_decay"]["penalty"])
    }
}

/// burn's fields are private, and written as JSON under their names.
fn of_burn(written: &Value, mode: AdamMode, decay: &Value) -> Settings {
    let mut config = Config::default();
    let optimizer = &mut config.optimizer;
    optimizer.mode = mode;
    let number = |value: &Value| value.as_f64().map(|number| f64::from(number as f32));
    let fields = [("beta_1", &mut optimizer.beta1), ("beta_2", &mut optimizer.beta2)];
    for (name, field) in fields.into_iter().chain([("epsilon", &mut optimizer.eps)]) {
        *field = number(&written[name]).unwrap_or(*field);
    }
    optimizer.weight_decay = number(decay).unwrap_or(0.0);
    let is_set = |name: &&&str| !matches!(written[**name], Value::Null | Value::Bool(false));
    let refused = ["amsgrad", "cautious_weight_decay", "grad_clipping"];
    let refused = refused.iter().find(is_set).copied();
    Settings { config, has_rate: false, refused }
}
