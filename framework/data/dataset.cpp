#include "framework/data/dataset.h"

namespace evenkeel {

void DataConfig::visit_fields(ConfigVisitor& v) {
    v.field("path", path, "text file, or directory whose text files are joined in name order");
    v.field("validation_fraction", validation_fraction,
            "last part of the text, held out for validation");
}

}  // namespace evenkeel
