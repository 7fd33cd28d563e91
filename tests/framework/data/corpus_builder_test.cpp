#include "framework/data/corpus_builder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "framework/data/byte_dataset.h"
#include "framework/data/token_stream.h"
#include "framework/error.h"
#include "framework/storage/checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

class CorpusBuilderTest : public ::testing::Test {
  protected:
    CorpusOptions options(std::vector<std::string> inputs) const {
        CorpusOptions result;
        result.inputs = std::move(inputs);
        result.output = directory_.file("out");
        return result;
    }
    // The documents in the output, ends of documents included.
    std::vector<std::string> documents(const std::string& name = "out") const {
        const TokenStream stream(directory_.file(name), 1 << 20, -1);
        std::vector<std::string> all;
        for (std::int64_t d = 0; d < stream.index()->num_documents(); ++d) {
            const std::int64_t begin = stream.index()->document_start(d);
            std::vector<std::int32_t> ids(
                static_cast<std::size_t>(stream.index()->document_start(d + 1) - begin));
            stream.read(begin, ids);
            all.emplace_back(ids.begin(), ids.end());
        }
        return all;
    }
    std::string fault(const CorpusOptions& corpus, ErrorCode code) const {
        try {
            build_corpus(corpus);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), code) << error.what();
            return error.what();
        }
        return "";
    }
    // Nothing but the inputs.
    void expect_nothing_left() const {
        for (const fs::directory_entry& entry : fs::directory_iterator(directory_.path())) {
            EXPECT_EQ(entry.path().filename().string().find("out"), std::string::npos)
                << entry.path();
        }
    }
    TemporaryDirectory directory_;
};

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

using Documents = std::vector<std::string>;
const std::string kEnd(1, '\0');

TEST_F(CorpusBuilderTest, ATextIsADocument) {
    const std::string a = directory_.write("a", "first\ntext\n"),
                      b = directory_.write("b", "second");
    const CorpusProgress done = build_corpus(options({a, b}));
    EXPECT_EQ(done.documents, 2);
    EXPECT_EQ(done.tokens, 19);
    EXPECT_EQ(done.bytes, 17u);
    EXPECT_EQ(documents(), (Documents{"first\ntext\n" + kEnd, "second" + kEnd}));
    EXPECT_EQ(TokenStream(directory_.file("out"), 256, -1).type(), TokenType::kUint8);
    EXPECT_EQ(read_token_description(directory_.file("out"))->vocab_size, 256);
    EXPECT_EQ(tokenizer_of(directory_.file("out.bin")), "bytes");
}

TEST_F(CorpusBuilderTest, ALineMayStandBetweenDocuments) {
    CorpusOptions corpus =
        options({directory_.write("a", "%\none\n%\ntwo\nlines\n%\n%\n% not\nthree")});
    corpus.separator = "%";
    corpus.end_of_document = -1;
    build_corpus(corpus);
    EXPECT_EQ(documents(), (Documents{"one\n", "two\nlines\n", "% not\nthree"}));
}

TEST_F(CorpusBuilderTest, JsonLinesAreADocumentEach) {
    const std::string a = directory_.write(
        "a.jsonl",
        "{\"text\": \"one\", \"id\": 1}\n\n  \n{\"text\": \"\"}\n{\"text\": \"h\\u00e4\\n\"}");
    CorpusOptions corpus = options({a});
    corpus.end_of_document = 10;
    EXPECT_FAULT(fault(corpus, ErrorCode::kIo), "a.jsonl:5: byte 3 of the document is 10");
    corpus.end_of_document = 1;
    build_corpus(corpus);
    EXPECT_EQ(documents(), (Documents{"one\1", "h\xc3\xa4\n\1"}));
}

TEST_F(CorpusBuilderTest, TheTextMayHaveAnotherKey) {
    CorpusOptions corpus = options({directory_.write("a.json", "{\"content\": \"one\"}\n")});
    EXPECT_FAULT(fault(corpus, ErrorCode::kIo), "a.json:1: got no \"text\"");
    corpus.text_key = "content";
    build_corpus(corpus);
    EXPECT_EQ(documents(), Documents{"one" + kEnd});
}

TEST_F(CorpusBuilderTest, ADirectorysFilesComeInNameOrder) {
    fs::create_directory(directory_.file("in"));
    directory_.write("in/b.jsonl", "{\"text\": \"b\"}\n");
    directory_.write("in/a", "a");
    directory_.write("in/c", "");
    build_corpus(options({directory_.file("in")}));
    EXPECT_EQ(documents(), (Documents{"a" + kEnd, "b" + kEnd}));
}

// As training on the directory itself does.
TEST_F(CorpusBuilderTest, ADirectorysBinaryFilesAndLinksAreLeftOut) {
    const std::string nul(1, '\0');
    fs::create_directory(directory_.file("in"));
    directory_.write("in/a", "some text ");
    directory_.write("in/a.dat", "x" + nul + "y");
    directory_.write("in/b.dat", std::string(3 << 20, 'x') + nul);
    directory_.write("in/c", "and more");
    fs::create_symlink("a", directory_.file("in/a.u8"));
    ::testing::internal::CaptureStderr();
    const CorpusProgress done = build_corpus(options({directory_.file("in")}));
    EXPECT_FAULT(::testing::internal::GetCapturedStderr(),
                 directory_.file("in") + ": 2 files are left out: binary");
    EXPECT_EQ(documents(), (Documents{"some text " + kEnd, "and more" + kEnd}));
    EXPECT_EQ(done.bytes, done.total_bytes);
    DataConfig training;
    training.path = directory_.file("in");
    training.validation_fraction = 0.5;
    const ByteDataset dataset(training, 2);
    EXPECT_EQ(dataset.train_tokens() + dataset.validation_tokens(), done.tokens - done.documents);
}

TEST_F(CorpusBuilderTest, BinaryFilesByThemselvesAreRefused) {
    fs::create_directory(directory_.file("in"));
    const std::string file = directory_.write("in/a.dat", "x" + std::string(1, '\0') + "y");
    EXPECT_FAULT(fault(options({directory_.file("in")}), ErrorCode::kConfig),
                 "got 1 file in " + directory_.file("in") + ", binary all, want text");
    EXPECT_FAULT(fault(options({file}), ErrorCode::kIo),
                 "a.dat:1: byte 1 of the document is 0, which is to end documents; if the file is "
                 "binary leave it out, else take --end-of-document -1");
    expect_nothing_left();
}

TEST_F(CorpusBuilderTest, AnyNumberOfThreadsWritesTheSameBytes) {
    std::string lines;
    for (int i = 0; i < 500; ++i) {
        lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(i * 7 % 61), 'a' + i % 26) +
                 "\"}\n";
    }
    const std::string input = directory_.write("a.jsonl", lines);
    for (const int threads : {1, 3}) {
        CorpusOptions corpus = options({input});
        corpus.output = directory_.file("out" + std::to_string(threads));
        corpus.threads = threads;
        build_corpus(corpus);
    }
    for (const char* suffix : {".bin", ".idx", ".json"}) {
        EXPECT_EQ(read_file(directory_.file(std::string("out1") + suffix)),
                  read_file(directory_.file(std::string("out3") + suffix)))
            << suffix;
    }
}

TEST_F(CorpusBuilderTest, ProgressEndsWithAllBytes) {
    std::vector<CorpusProgress> seen;
    build_corpus(options({directory_.write("a", "text")}),
                 [&](const CorpusProgress& progress) { seen.push_back(progress); });
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back().bytes, 4u);
    EXPECT_EQ(seen.back().total_bytes, 4u);
    EXPECT_EQ(seen.back().documents, 1);
}

TEST_F(CorpusBuilderTest, FaultsNameTheLineAndLeaveNothing) {
    const std::string good = "{\"text\": \"one\"}\n";
    struct Case {
        std::string lines;
        const char* want;
    };
    const Case cases[] = {
        {good + "{\"text\": \"cut", "a.jsonl:2: want a JSON object"},
        {good + "\n[1]\n" + good, "a.jsonl:3: want a JSON object"},
        {good + "{\"text\": 5}\n", "a.jsonl:2: \"text\": want a string"},
        {good + good + "{\"title\": \"x\"}\n", "a.jsonl:3: got no \"text\""},
        {good + "{\"text\": \"a\\u0000b\"}\n", "a.jsonl:2: byte 1 of the document is 0"},
    };
    for (const Case& c : cases) {
        EXPECT_FAULT(fault(options({directory_.write("a.jsonl", c.lines)}), ErrorCode::kIo),
                     c.want);
        expect_nothing_left();
    }
    EXPECT_FAULT(fault(options({directory_.file("none")}), ErrorCode::kConfig),
                 "none: no such file");
    EXPECT_FAULT(fault(options({directory_.write("empty", "")}), ErrorCode::kConfig),
                 "got no text");
    CorpusOptions corpus = options({directory_.write("a", "text")});
    corpus.end_of_document = 256;
    EXPECT_FAULT(fault(corpus, ErrorCode::kConfig), "--end-of-document: got 256");
    expect_nothing_left();
}

TEST_F(CorpusBuilderTest, AFailureLeavesNoDirectoryThatItHasMade) {
    CorpusOptions corpus = options({directory_.write("empty", "")});
    fs::create_directory(directory_.file("there"));
    corpus.output = directory_.file("there/out/deeper/corpus");
    fault(corpus, ErrorCode::kConfig);
    EXPECT_TRUE(fs::is_empty(directory_.file("there")));
    corpus.inputs = {directory_.write("a", "text")};
    build_corpus(corpus);
    EXPECT_TRUE(fs::exists(corpus.output + ".bin"));
}

TEST_F(CorpusBuilderTest, ASignalLeavesNothing) {
    const CorpusOptions corpus = [&] {
        CorpusOptions result = options({directory_.write("a", "text")});
        result.threads = 1;
        return result;
    }();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        const pid_t child = ::fork();
        if (child == 0) {
            std::signal(signal, SIG_DFL);
            build_corpus(corpus, [&](const CorpusProgress&) { ::raise(signal); });
            _exit(0);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status)) << signal;
        EXPECT_EQ(WTERMSIG(status), signal);
        expect_nothing_left();
    }
}

TEST_F(CorpusBuilderTest, OfTwoAtOnceOneFails) {
    CorpusOptions corpus = options({directory_.write("a", "text")});
    try {
        build_corpus(corpus, [&](const CorpusProgress&) { directory_.write("out.idx", "theirs"); });
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        EXPECT_FAULT(std::string(error.what()), "out.idx: is there already");
    }
    EXPECT_EQ(read_file(directory_.file("out.idx")), "theirs");
    fs::remove(directory_.file("out.idx"));
    expect_nothing_left();
}

TEST_F(CorpusBuilderTest, NamesThatAreNoBeginningAreRefused) {
    CorpusOptions corpus = options({directory_.write("a", "text")});
    for (const char* name : {"/", "/.", "/..", "/out.bin", "/out.idx"}) {
        corpus.output = directory_.path() + name;
        EXPECT_FAULT(fault(corpus, ErrorCode::kConfig), "want what the files' names begin with");
    }
    corpus.output = directory_.file(std::string(5000, 'x'));
    EXPECT_FAULT(fault(corpus, ErrorCode::kConfig), "--out: got ");
    corpus.output = directory_.file(std::string(300, 'x'));
    EXPECT_FAULT(fault(corpus, ErrorCode::kIo), "File name too long");
    expect_nothing_left();
}

TEST_F(CorpusBuilderTest, WhatIsThereStays) {
    const std::string a = directory_.write("a", "text");
    directory_.write("out.idx", "mine");
    EXPECT_FAULT(fault(options({a}), ErrorCode::kConfig), "out.idx: is there already");
    EXPECT_EQ(read_file(directory_.file("out.idx")), "mine");
    EXPECT_FALSE(fs::exists(directory_.file("out.bin")));
}

}  // namespace
}  // namespace evenkeel
