#include "model/hugging_face/families.h"

#include "framework/error.h"

namespace evenkeel::hugging_face {
namespace {

#define EVENKEEL_FAMILY_ADDRESS(name) &name,
constexpr const Family* kFamilies[] = {EVENKEEL_FAMILIES(EVENKEEL_FAMILY_ADDRESS)};
#undef EVENKEEL_FAMILY_ADDRESS

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family* find_family(const std::string& name) {
    for (const Family* family : families()) {
        if (name == family->name) return family;
    }
    return nullptr;
}

std::string family_names() {
    std::string names;
    for (const Family* family : families())
        names += concat(names.empty() ? "" : ", ", family->name);
    return names;
}

}  // namespace evenkeel::hugging_face
