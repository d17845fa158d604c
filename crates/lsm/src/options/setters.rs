//! Setters of option structs.

/// Gives a struct a consuming setter for each listed field, with the field's name and type. The
/// field's comment says what the field means. A list that lacks a field does not compile.
macro_rules! setters {
    ($of:ident { $($field:ident: $type:ty,)* }) => {
        const _: fn($of) = |$of { $($field: _),* }| ();

        impl $of {
            $(
                #[doc = concat!(
                    "Returns the options with the field [`", stringify!($field), "`](field@",
                    stringify!($of), "::", stringify!($field), ") set to this value."
                )]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> $of {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

pub(crate) use setters;
