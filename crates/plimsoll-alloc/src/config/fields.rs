//! The macro that generates a struct of options: `fields!`.

/// Generates a struct with one field per row. A row has the option's doc comment, its field, type and default, its
/// setter, and for some options a function that checks the bounds and returns the value to set. The getter has the
/// field's name. The fields after `and` get no getter or setter here; they are written by hand.
macro_rules! fields {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[$doc:meta])*
                $field:ident: $type:ty = $default:expr, $setter:ident
                    $($(#[$unless:meta])+ within $bounds:path)?;
            )*
        } and {
            $($own:ident: $own_type:ty = $own_default:expr;)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($field: $type,)*
            $($own: $own_type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* $($own: $own_default,)* }
            }
        }

        /// The options' values.
        impl $name {
            $(
                $(#[$doc])*
                pub fn $field(&self) -> $type {
                    self.$field
                }
            )*
        }

        /// The options' setters.
        impl $name {
            $($crate::config::fields::fields!(@setter $field $setter $type; $($(#[$unless])+ $bounds)?);)*
        }
    };
    (@setter $field:ident $setter:ident $type:ty;) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        pub fn $setter(self, $field: $type) -> Self {
            Self { $field, ..self }
        }
    };
    (@setter $field:ident $setter:ident $type:ty; $(#[$unless:meta])+ $bounds:path) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        ///
        /// # Errors
        $(#[$unless])+
        pub fn $setter(self, $field: $type) -> Result<Self, InvalidOption> {
            let $field = $bounds(&self, $field)?;
            Ok(Self { $field, ..self })
        }
    };
}

pub(super) use fields;
