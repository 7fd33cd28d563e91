#include "framework/json.h"

template class nlohmann::detail::lexer<nlohmann::json, evenkeel::JsonText>;
template class nlohmann::detail::lexer<nlohmann::ordered_json, evenkeel::JsonText>;
template class nlohmann::detail::parser<nlohmann::json, evenkeel::JsonText>;
template class nlohmann::detail::parser<nlohmann::ordered_json, evenkeel::JsonText>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
