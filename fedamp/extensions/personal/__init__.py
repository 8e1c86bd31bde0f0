"""Personal layers: parameters that stay with their client (``model.local``) are kept from round to round."""

from fedamp.extension import Extension

extension = Extension(name="personal")
