//! A module in one definition: the macro [`module!`](crate::module).

/// Defines a module: its fields and their layers, its constructor `new`, the list of its members, and its functions. A `forward` of
/// one tensor is the one of [`Module`](crate::nn::Module); a `forward` of several tensors, and functions with other names, are methods
/// of the struct; generic functions need an `impl` of their own.
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
/// ```
/// use plimsoll::nn::{Bilinear, Linear, Module, Scope};
/// use plimsoll::{Device, Result, Tensor, module};
///
/// module! {
///     /// A score for each pair of rows.
///     struct Score(s, width: usize) {
///         left: Linear = Linear::new(s, width, width)?,
///         pair: Bilinear = Bilinear::new(s, width, width, 1)?,
///     }
///
///     fn forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
///         self.pair.forward(&self.left.forward(a)?, b)
///     }
/// }
///
/// let device = Device::cpu();
/// let (score, x) = (Score::new(&Scope::new(&device, 1), 4)?, Tensor::ones(&[2, 4], &device)?);
/// assert_eq!(score.forward(&x, &x)?.shape(), [2, 1]);
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
    // Sorts functions: those of the trait, and the struct's own.
    (@functions $name:ident { $($of_trait:tt)* } { $($own:tt)* }) => {
        impl $crate::nn::Module for $name {
            $($of_trait)*
        }

        impl $name {
            $($own)*
        }
    };
    (@functions $name:ident { $($of_trait:tt)* } { $($own:tt)* }
        $(#[$about:meta])* fn forward(&$this:ident, $input:ident: $of:ty $(,)?) -> $out:ty $body:block $($rest:tt)*
    ) => {
        $crate::module!(@functions $name
            { $($of_trait)* $(#[$about])* fn forward(&$this, $input: $of) -> $out $body } { $($own)* } $($rest)*);
    };
    (@functions $name:ident { $($of_trait:tt)* } { $($own:tt)* }
        $(#[$about:meta])* pub fn forward(&$this:ident, $input:ident: $of:ty $(,)?) -> $out:ty $body:block $($rest:tt)*
    ) => {
        $crate::module!(@functions $name
            { $($of_trait)* $(#[$about])* fn forward(&$this, $input: $of) -> $out $body } { $($own)* } $($rest)*);
    };
    (@functions $name:ident { $($of_trait:tt)* } { $($own:tt)* }
        $(#[$about:meta])* fn kind(&$this:ident) -> $out:ty $body:block $($rest:tt)*
    ) => {
        $crate::module!(@functions $name
            { $($of_trait)* $(#[$about])* fn kind(&$this) -> $out $body } { $($own)* } $($rest)*);
    };
    (@functions $name:ident { $($of_trait:tt)* } { $($own:tt)* }
        $(#[$about:meta])* $vis:vis fn $function:ident($($arguments:tt)*) $(-> $out:ty)? $body:block $($rest:tt)*
    ) => {
        $crate::module!(@functions $name { $($of_trait)* }
            { $($own)* $(#[$about])* $vis fn $function($($arguments)*) $(-> $out)? $body } $($rest)*);
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

        $crate::module!(@functions $name
            {
                fn members<'a>(&'a self, list: &mut $crate::nn::Members<'a>) {
                    $($crate::module!(@member list (&self.$field) $field $($value)?);)*
                }

                fn members_mut<'a>(&'a mut self, list: &mut $crate::nn::MembersMut<'a>) {
                    $($crate::module!(@member list (&mut self.$field) $field $($value)?);)*
                }
            }
            {}
            $($rest)*);
    };
}
