#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {

const FormTable& form_table() {
    static const FormTable* table = [] {
        auto* t = new FormTable;
        add_integer_forms(*t);
        add_float_forms(*t);
        add_half_forms(*t);
        add_comparison_forms(*t);
        add_conversion_forms(*t);
        add_memory_forms(*t);
        add_warp_forms(*t);
        add_control_forms(*t);
        return t;
    }();
    return *table;
}

}  // namespace gpu_emulator
