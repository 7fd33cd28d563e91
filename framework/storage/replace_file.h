// Files that appear under their name whole, in the place of an earlier one, and of nothing else.
#pragma once

#include <functional>
#include <string>

namespace evenkeel {

// Throws kIo where `path` is there and is no file: renaming a file to it would take away a device or a pipe.
void check_replaceable(const std::string& path);
// Has `write` write a file beside `path` and flush it, then renames it to `path`, which is checked as above. Leaves
// nothing beside it when that fails.
void replace_file(const std::string& path,
                  const std::function<void(const std::string& unfinished)>& write);

}  // namespace evenkeel
