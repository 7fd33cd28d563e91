// nlohmann's JSON, for sources only. Its parser and its writer take seconds to compile; here they are said to be
// elsewhere, in json.cpp, so that no other source compiles them again.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace evenkeel {

using JsonText = decltype(nlohmann::detail::input_adapter(std::declval<const std::string&>()));

}  // namespace evenkeel

extern template class nlohmann::detail::lexer<nlohmann::json, evenkeel::JsonText>;
extern template class nlohmann::detail::lexer<nlohmann::ordered_json, evenkeel::JsonText>;
extern template class nlohmann::detail::parser<nlohmann::json, evenkeel::JsonText>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json, evenkeel::JsonText>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
