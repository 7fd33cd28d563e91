#include <algorithm>

#include "tests/gpu_emulator/forms.h"
#include "tests/gpu_emulator/instructions/forms.h"

namespace instructions {

bool can_run(const Case& c) { return gpu_emulator::form_table().find(c.form) != nullptr; }

std::vector<std::string> known_forms() {
    std::vector<std::string> forms;
    for (const auto& [text, variants] : gpu_emulator::form_table().all()) forms.push_back(text);
    std::sort(forms.begin(), forms.end());
    return forms;
}

}  // namespace instructions
