//! A module in one definition: the macro [`module!`](crate::module).

/// Defines a module: its fields and their layers, its constructor `new`, the list of its members, and the rest of `impl
/// Module`, usually `forward`.
///
/// The constructor takes a scope and the arguments in parentheses. Each field's value is built in a scope named after
/// the field. A field without a value takes the argument of the same name, and is not a member.
///
/// ```
/// use plimsoll::nn::{Init, Linear, Module, Parameter, Scope};
/// use plimsoll::{Device, Result, Tensor, module};
///
/// module! {
///     /// A block of two products with a learned scale.
///     struct Block(s, width: usize, slope: f64) {
///         up: Linear = Linear::new(s, width, 4 * width)?,
///         down: Linear = Linear::new(s, 4 * width, width)?,
///         gamma: Parameter = s.own_parameter(&[width], Init::Ones)?,
///         slope: f64,
///     }
///
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let update = self.down.forward(&self.up.forward(x)?.leaky_relu(self.slope)?)?;
///         x + (update * &self.gamma)?
///     }
/// }
///
/// let block = Block::new(&Scope::new(&Device::cpu(), 1), 8, 0.1)?;
/// let names: Vec<String> = block.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["gamma", "up.weight", "up.bias", "down.weight", "down.bias"]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[macro_export]
macro_rules! module {
    (@value $scope:ident $field:ident) => { $field };
    (@value $scope:ident $field:ident $value:expr) => {{
        let $scope = &$scope.at($crate::nn::field_name(stringify!($field)));
        $value
    }};
    (@member $list:ident ($place:expr) $field:ident) => {};
    (@member $list:ident ($place:expr) $field:ident $value:expr) => {
        $list.add($crate::nn::field_name(stringify!($field)), $place);
    };
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident($scope:ident $(, $argument:ident: $of:ty)* $(,)?) {
            $($(#[$of_field:meta])* $field:ident: $type:ty $(= $value:expr)?),* $(,)?
        }
        $($rest:tt)*
    ) => {
        $(#[$about])*
        $vis struct $name {
            $($(#[$of_field])* $field: $type,)*
        }

        impl $name {
            /// Builds the module in a scope.
            ///
            /// # Errors
            /// The errors of its layers.
            $vis fn new($scope: &$crate::nn::Scope $(, $argument: $of)*) -> $crate::Result<$name> {
                Ok($name { $($field: $crate::module!(@value $scope $field $($value)?),)* })
            }
        }

        impl $crate::nn::Module for $name {
            fn members<'a>(&'a self, list: &mut $crate::nn::Members<'a>) {
                $($crate::module!(@member list (&self.$field) $field $($value)?);)*
            }

            fn members_mut<'a>(&'a mut self, list: &mut $crate::nn::MembersMut<'a>) {
                $($crate::module!(@member list (&mut self.$field) $field $($value)?);)*
            }

            $($rest)*
        }
    };
}
