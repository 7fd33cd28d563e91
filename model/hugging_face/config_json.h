// A JSON object as in config.json of a Hugging Face folder, read with checks: what is missing, of another type or out
// of range is kConfig naming file and key. Text is hostile: its size, its nesting and keys that come twice are
// checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace evenkeel::hugging_face {

class ConfigJson {
  public:
    ConfigJson();  // {}
    // `origin` names the text in messages. Throws kIo for what is no JSON object.
    static ConfigJson parse(const std::string& text, const std::string& origin);
    ~ConfigJson();
    ConfigJson(const ConfigJson& other);
    ConfigJson& operator=(const ConfigJson& other);

    const std::string& origin() const { return origin_; }
    std::string to_text() const;  // indented by 2, keys in their order, ends in a newline

    // Whether the key is there with another value than null; a null counts as missing below too.
    bool has(const std::string& key) const;
    std::vector<std::string> keys() const;

    std::int64_t integer(const std::string& key) const;
    std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
    double number(const std::string& key) const;  // integers too; finite
    double number(const std::string& key, double otherwise) const;
    bool boolean(const std::string& key, bool otherwise) const;
    std::string text(const std::string& key) const;
    std::string text(const std::string& key, const std::string& otherwise) const;
    std::vector<std::string> texts(const std::string& key) const;  // [] when missing
    std::vector<std::int64_t> integers(const std::string& key) const;
    ConfigJson section(const std::string& key) const;  // a copy; {} when missing
    // The value as JSON text, whatever it is; "" when the key is not there.
    std::string raw(const std::string& key) const;

    // Each puts the value in the key's place, or last.
    void set(const std::string& key, std::int64_t value);
    void set(const std::string& key, int value);
    void set(const std::string& key, double value);
    void set(const std::string& key, bool value);
    void set(const std::string& key, const std::string& value);
    void set(const std::string& key, const char* value);
    void set(const std::string& key, const std::vector<std::string>& value);
    void set(const std::string& key, const std::vector<std::int64_t>& value);
    void set(const std::string& key, const ConfigJson& value);
    void set_null(const std::string& key);
    void erase(const std::string& key);

    // Throws kConfig: "ORIGIN: KEY: got VALUE: REASON".
    [[noreturn]] void refuse(const std::string& key, const std::string& reason) const;
    // Refuses the key unless it is missing or has this value: for settings of which only one is known here.
    void require(const std::string& key, bool value, const std::string& reason) const;
    void require(const std::string& key, double value, const std::string& reason) const;
    void require(const std::string& key, const char* value, const std::string& reason) const;

  private:
    struct Value;
    std::unique_ptr<Value> value_;
    std::string origin_;
    std::string path_;  // of a section: "rope_scaling."
};

}  // namespace evenkeel::hugging_face
