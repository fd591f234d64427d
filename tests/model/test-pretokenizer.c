/* Pre-tokenizers: the words of each family, against a table made with the models' regular
 * expressions by an independent engine (Python's regex package, 2026-11), and the character classes
 * and UTF-8 functions underneath. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/pretokenizer.h"
#include "model/text/unicode.h"

/* Words between bars, in the order of `families`. */
static const char *const families[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
static const struct {
    const char *text;
    const char *words[4];
} cases[] = {
    // clang-format off
    {"I'm sure we'll don't they'VE I'D",
     {"I|'m| sure| we|'ll| don|'t| they|'|VE| I|'|D",
      "I|'m| sure| we|'ll| don|'t| they|'|VE| I|'|D",
      "I|'m| sure| we|'ll| don|'t| they|'VE| I|'D",
      "I|'m| sure| we|'ll| don|'t| they|'VE| I|'D"}},
    {"it’s 'quote' ' s 'S'ſx",
     {"it|’|s| '|quote|'| '| s| '|S|'|ſx",
      "it|’|s| '|quote|'| '| s| '|S|'|ſx",
      "it|’s| '|quote|'| '| s| '|S|'ſ|x",
      "it|’s| '|quote|'| '| s| '|S|'ſ|x"}},
    {"12345 678 9",
     {"12345| 678| 9",
      "1|2|3|4|5| |6|7|8| |9",
      "123|45| |678| |9",
      "1|2|3|4|5| |6|7|8| |9"}},
    {"x1y22z333",
     {"x|1|y|22|z|333",
      "x|1|y|2|2|z|3|3|3",
      "x|1|y|22|z|333",
      "x|1|y|2|2|z|3|3|3"}},
    {"1 2  3",
     {"1| 2| | 3",
      "1| |2|  |3",
      "1| |2| | |3",
      "1| |2| | |3"}},
    {"a\nb\n\nc",
     {"a|\n|b|\n|\n|c",
      "a|\n|b|\n|\n|c",
      "a|\n|b|\n\n|c",
      "a|\n|b|\n\n|c"}},
    {"a\r\n\r\n b",
     {"a|\r\n\r\n| b",
      "a|\r\n\r\n| b",
      "a|\r\n\r\n| b",
      "a|\r\n\r\n| b"}},
    {"end  \n\n  next",
     {"end|  \n\n | next",
      "end|  \n\n | next",
      "end|  \n\n| | next",
      "end|  \n\n| | next"}},
    {" \n \n ",
     {" \n \n ",
      " \n \n ",
      " \n \n| ",
      " \n \n| "}},
    {"  lead and trail  ",
     {" | lead| and| trail|  ",
      " | lead| and| trail|  ",
      " | lead| and| trail|  ",
      " | lead| and| trail|  "}},
    {"tab\tsep\t\tend\t",
     {"tab|\t|sep|\t|\t|end|\t",
      "tab|\t|sep|\t|\t|end|\t",
      "tab|\tsep|\t|\tend|\t",
      "tab|\tsep|\t|\tend|\t"}},
    {"!?!\n\nNext",
     {"!?!|\n|\n|Next",
      "!?!|\n|\n|Next",
      "!?!\n\n|Next",
      "!?!\n\n|Next"}},
    {"(foo) [bar]{baz}",
     {"(|foo|)| [|bar|]{|baz|}",
      "(|foo|)| [|bar|]{|baz|}",
      "(foo|)| [|bar|]{|baz|}",
      "(foo|)| [|bar|]{|baz|}"}},
    {"x += y->z; // c",
     {"x| +=| y|->|z|;| //| c",
      "x| +=| y|->|z|;| //| c",
      "x| +=| y|->|z|;| //| c",
      "x| +=| y|->|z|;| //| c"}},
    {"你好，世界！",
     {"你好|，|世界|！",
      "你好|，|世界|！",
      "你好|，世界|！",
      "你好|，世界|！"}},
    {"日本語テキスト123",
     {"日本語テキスト|123",
      "日本語テキスト|1|2|3",
      "日本語テキスト|123",
      "日本語テキスト|1|2|3"}},
    {"😀👍🏽 ok 😀",
     {"😀👍🏽| ok| 😀",
      "😀👍🏽| ok| 😀",
      "😀👍🏽| ok| 😀",
      "😀👍🏽| ok| 😀"}},
    {"naïve café Ünïcode",
     {"naïve| café| Ünïcode",
      "naïve| café| Ünïcode",
      "naïve| café| Ünïcode",
      "naïve| café| Ünïcode"}},
    {"٣٤٥ ½ Ⅷ x²",
     {"٣٤٥| ½| Ⅷ| x|²",
      "٣|٤|٥| |½| |Ⅷ| x|²",
      "٣٤٥| |½| |Ⅷ| x|²",
      "٣|٤|٥| |½| |Ⅷ| x|²"}},
    {"e\314\201a\314\200",
     {"e|\314\201|a|\314\200",
      "e|\314\201|a|\314\200",
      "e|\314\201a|\314\200",
      "e|\314\201a|\314\200"}},
    {"a\302\240b\343\200\200c\342\200\203\342\200\203d",
     {"a|\302\240|b|\343\200\200|c|\342\200\203|\342\200\203|d",
      "a|\302\240|b|\343\200\200|c|\342\200\203|\342\200\203|d",
      "a|\302\240b|\343\200\200c|\342\200\203|\342\200\203d",
      "a|\302\240b|\343\200\200c|\342\200\203|\342\200\203d"}},
    {"$3.14, 1,000",
     {"$|3|.|14|,| 1|,|000",
      "$|3|.|1|4|,| |1|,|0|0|0",
      "$|3|.|14|,| |1|,|000",
      "$|3|.|1|4|,| |1|,|0|0|0"}},
    {"_under_score_ __x",
     {"_|under|_|score|_| __|x",
      "_|under|_|score|_| __|x",
      "_under|_score|_| __|x",
      "_under|_score|_| __|x"}},
    {"\342\200\215\357\270\217",
     {"\342\200\215\357\270\217",
      "\342\200\215\357\270\217",
      "\342\200\215\357\270\217",
      "\342\200\215\357\270\217"}},
    {"Привет, мир!",
     {"Привет|,| мир|!",
      "Привет|,| мир|!",
      "Привет|,| мир|!",
      "Привет|,| мир|!"}},
    {"नमस\340\245\215त\340\245\207",
     {"नमस|\340\245\215|त|\340\245\207",
      "नमस|\340\245\215|त|\340\245\207",
      "नमस|\340\245\215त|\340\245\207",
      "नमस|\340\245\215त|\340\245\207"}},
    {"  1",
     {" | 1",
      "  |1",
      " | |1",
      " | |1"}},
    {"   ",
     {"   ",
      "   ",
      "   ",
      "   "}},
    {"\n",
     {"\n",
      "\n",
      "\n",
      "\n"}},
    {"x\034y\341\240\216z\302\205 w",
     {"x|\034|y|\341\240\216|z|\302\205| w",
      "x|\034|y|\341\240\216|z|\302\205| w",
      "x|\034y|\341\240\216z|\302\205| w",
      "x|\034y|\341\240\216z|\302\205| w"}},
    // clang-format on
};

/* The same for those that tell capitals, marks and signs apart. */
static const char *const cased_families[] = {"gpt-4o", "tekken", "deepseek-v3"};
static const struct {
    const char *text;
    const char *words[3];
} cased_cases[] = {
    // clang-format off
    {"I'm sure we'll DON'T they'VE I'D",
     {"I'm| sure| we'll| DON'T| they'VE| I'D",
      "I|'m| sure| we|'ll| DON|'T| they|'VE| I|'D",
      "I|'m| sure| we|'ll| DON|'T| they|'VE| I|'D"}},
    {"HelloWorld helloWORLD HELLOworld",
     {"Hello|World| hello|WORLD| HELLOworld",
      "Hello|World| hello|WORLD| HELLOworld",
      "HelloWorld| helloWORLD| HELLOworld"}},
    {"camelCaseHTTPServer2 x",
     {"camel|Case|HTTPServer|2| x",
      "camel|Case|HTTPServer|2| x",
      "camelCaseHTTPServer|2| x"}},
    {"it\xE2\x80\x99s 'quote' ' s 'S'\xC5\xBFx",
     {"it|\xE2\x80\x99s| '|quote|'| '| s| '|S'\xC5\xBF|x",
      "it|\xE2\x80\x99s| '|quote|'| '| s| '|S|'\xC5\xBFx",
      "it|\xE2\x80\x99|s| '|quote|'| '| s| '|S|'|\xC5\xBFx"}},
    {"12345 678 9",
     {"123|45| |678| |9",
      "1|2|3|4|5| |6|7|8| |9",
      "123|45| |678| |9"}},
    {"x1y22z333",
     {"x|1|y|22|z|333",
      "x|1|y|2|2|z|3|3|3",
      "x|1|y|22|z|333"}},
    {"a\nb\n\nc",
     {"a|\n|b|\n\n|c",
      "a|\n|b|\n\n|c",
      "a|\n|b|\n\n|c"}},
    {"end  \n\n  next",
     {"end|  \n\n| | next",
      "end|  \n\n| | next",
      "end|  \n\n| | next"}},
    {"  lead and trail  ",
     {" | lead| and| trail|  ",
      " | lead| and| trail|  ",
      " | lead| and| trail|  "}},
    {"!?!\n\nNext",
     {"!?!\n\n|Next",
      "!?!\n\n|Next",
      "!?!\n\n|Next"}},
    {"a/b//c\n/ path/\n/x",
     {"a|/b|//|c|\n|/| path|/\n/|x",
      "a|/b|//|c|\n|/| path|/\n/|x",
      "a|/b|//|c|\n|/| path|/\n|/x"}},
    {"(foo) [bar]{baz}",
     {"(foo|)| [|bar|]{|baz|}",
      "(foo|)| [|bar|]{|baz|}",
      "(foo|)| [|bar|]{|baz|}"}},
    {"\xC3\x9Cn\xC3\xAF""c\xC3\xB6""d\xC3\xA9 \xC3\x80\xC3\x89 \xC3\xA9\xC3\x80 \xC3\x9F\xC3\x9F",
     {"\xC3\x9Cn\xC3\xAF""c\xC3\xB6""d\xC3\xA9| \xC3\x80\xC3\x89| \xC3\xA9|\xC3\x80| \xC3\x9F\xC3\x9F",
      "\xC3\x9Cn\xC3\xAF""c\xC3\xB6""d\xC3\xA9| \xC3\x80\xC3\x89| \xC3\xA9|\xC3\x80| \xC3\x9F\xC3\x9F",
      "\xC3\x9Cn\xC3\xAF""c\xC3\xB6""d\xC3\xA9| \xC3\x80\xC3\x89| \xC3\xA9\xC3\x80| \xC3\x9F\xC3\x9F"}},
    {"\xC7\x85ungla \xC7\x85X",
     {"\xC7\x85ungla| \xC7\x85X",
      "\xC7\x85ungla| \xC7\x85X",
      "\xC7\x85ungla| \xC7\x85X"}},
    {"\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A mix\xE6\xBC\xA2\xE5\xAD\x97""A \xE4\xB8\xAD""A x",
     {"\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A| mix\xE6\xBC\xA2\xE5\xAD\x97|A| \xE4\xB8\xAD|A| x",
      "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A| mix\xE6\xBC\xA2\xE5\xAD\x97|A| \xE4\xB8\xAD|A| x",
      "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A| mix|\xE6\xBC\xA2\xE5\xAD\x97|A| |\xE4\xB8\xAD|A| x"}},
    {"\xE4\xB8\xAD""Ab",
     {"\xE4\xB8\xAD""Ab",
      "\xE4\xB8\xAD""Ab",
      "\xE4\xB8\xAD|Ab"}},
    {"e\xCC\x81te\xCC\x81 \xCC\x81x A\xCC\x81""b",
     {"e\xCC\x81te\xCC\x81| \xCC\x81x| A\xCC\x81""b",
      "e\xCC\x81te\xCC\x81| \xCC\x81x| A\xCC\x81""b",
      "e\xCC\x81te\xCC\x81| \xCC\x81x| A\xCC\x81""b"}},
    {"\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D\xE0\xA4\xA6\xE0\xA5\x80 \xE0\xA4\xAE\xE0\xA5\x87\xE0\xA4\x82",
     {"\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D\xE0\xA4\xA6\xE0\xA5\x80| \xE0\xA4\xAE\xE0\xA5\x87\xE0\xA4\x82",
      "\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D\xE0\xA4\xA6\xE0\xA5\x80| \xE0\xA4\xAE\xE0\xA5\x87\xE0\xA4\x82",
      "\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D\xE0\xA4\xA6\xE0\xA5\x80| \xE0\xA4\xAE\xE0\xA5\x87\xE0\xA4\x82"}},
    {"$price \xE2\x82\xAC""9.99 \xC2\xB1""3%",
     {"$price| \xE2\x82\xAC|9|.|99| \xC2\xB1|3|%",
      "$price| \xE2\x82\xAC|9|.|9|9| \xC2\xB1|3|%",
      "$price| \xE2\x82\xAC|9|.|99| \xC2\xB1|3|%"}},
    {"\xE2\x80\x8Bzero\xE2\x80\x8Bwidth",
     {"\xE2\x80\x8Bzero|\xE2\x80\x8Bwidth",
      "\xE2\x80\x8Bzero|\xE2\x80\x8Bwidth",
      "\xE2\x80\x8Bzero|\xE2\x80\x8Bwidth"}},
    {"tab\tsep\t\tend\t",
     {"tab|\tsep|\t|\tend|\t",
      "tab|\tsep|\t|\tend|\t",
      "tab|\tsep|\t|\tend|\t"}},
    {"`code` #tag @user",
     {"`code|`| #|tag| @|user",
      "`code|`| #|tag| @|user",
      "`code|`| #|tag| @|user"}},
    {"a\x01""b\x01\x02 c",
     {"a|\x01""b|\x01\x02| c",
      "a|\x01""b|\x01\x02| c",
      "a|\x01""b|\x01\x02| c"}},
    {"\xD9\xA1\xD9\xA2\xD9\xA3\xD9\xA4 \xE0\xA5\xAA\xE0\xA5\xAB\xE0\xA5\xAC\xE0\xA5\xAD",
     {"\xD9\xA1\xD9\xA2\xD9\xA3|\xD9\xA4| |\xE0\xA5\xAA\xE0\xA5\xAB\xE0\xA5\xAC|\xE0\xA5\xAD",
      "\xD9\xA1|\xD9\xA2|\xD9\xA3|\xD9\xA4| |\xE0\xA5\xAA|\xE0\xA5\xAB|\xE0\xA5\xAC|\xE0\xA5\xAD",
      "\xD9\xA1\xD9\xA2\xD9\xA3|\xD9\xA4| |\xE0\xA5\xAA\xE0\xA5\xAB\xE0\xA5\xAC|\xE0\xA5\xAD"}},
    {"\xF0\x9F\x99\x82\xF0\x9F\x99\x82 ok\xF0\x9F\x99\x82",
     {"\xF0\x9F\x99\x82\xF0\x9F\x99\x82| ok|\xF0\x9F\x99\x82",
      "\xF0\x9F\x99\x82\xF0\x9F\x99\x82| ok|\xF0\x9F\x99\x82",
      "\xF0\x9F\x99\x82\xF0\x9F\x99\x82| ok|\xF0\x9F\x99\x82"}},
    {".5 -7 +x -y",
     {".|5| -|7| +|x| -|y",
      ".|5| -|7| +|x| -|y",
      ".|5| -|7| +|x| -|y"}},
    {"\r\n\r\n b",
     {"\r\n\r\n| b",
      "\r\n\r\n| b",
      "\r\n\r\n| b"}},
    {"don't'll 's's",
     {"don't|'ll| '|s's",
      "don|'t|'ll| '|s|'s",
      "don|'t|'ll| '|s|'s"}},
    {"\xCA\xB0\xCA\xB0""A \xCA\xB0""a A\xCA\xB0",
     {"\xCA\xB0\xCA\xB0|A| \xCA\xB0""a| A\xCA\xB0",
      "\xCA\xB0\xCA\xB0|A| \xCA\xB0""a| A\xCA\xB0",
      "\xCA\xB0\xCA\xB0""A| \xCA\xB0""a| A\xCA\xB0"}},
    {" \xE4\xB8\xAD\xE6\x96\x87 ",
     {" \xE4\xB8\xAD\xE6\x96\x87| ",
      " \xE4\xB8\xAD\xE6\x96\x87| ",
      " |\xE4\xB8\xAD\xE6\x96\x87| "}},
    {"1\xE4\xB8\xAD""2",
     {"1|\xE4\xB8\xAD|2",
      "1|\xE4\xB8\xAD|2",
      "1|\xE4\xB8\xAD|2"}},
    {"x\xE3\x80\x81y\xE3\x80\x82z",
     {"x|\xE3\x80\x81y|\xE3\x80\x82z",
      "x|\xE3\x80\x81y|\xE3\x80\x82z",
      "x|\xE3\x80\x81|y|\xE3\x80\x82|z"}},
    {"~tilde_under_score",
     {"~tilde|_under|_score",
      "~tilde|_under|_score",
      "~tilde|_under|_score"}},
    {"\xE2\x85\xA7 \xE2\x85\xB7x \xE2\x91\xA1",
     {"\xE2\x85\xA7| |\xE2\x85\xB7|x| |\xE2\x91\xA1",
      "\xE2\x85\xA7| |\xE2\x85\xB7|x| |\xE2\x91\xA1",
      "\xE2\x85\xA7| |\xE2\x85\xB7|x| |\xE2\x91\xA1"}},
    // clang-format on
};

/* The same for those with Chinese characters or every sign apart. */
static const char *const apart_families[] = {"kimi-k2", "deepseek-llm"};
static const struct {
    const char *text;
    const char *words[2];
} apart_cases[] = {
    // clang-format off
    {"\xC2\xA9 !\xC2\xA9 x",
     {"\xC2\xA9| !\xC2\xA9| x",
      "\xC2\xA9| !|\xC2\xA9| x"}},
    {"I'm sure we'll DON'T they'VE",
     {"I'm| sure| we'll| DON'T| they'VE",
      "I|'|m| sure| we|'|ll| DON|'|T| they|'|VE"}},
    {"HelloWorld camelCaseHTTPServer2 x",
     {"Hello|World| camel|Case|HTTPServer|2| x",
      "HelloWorld| camelCaseHTTPServer|2| x"}},
    {"12345 678 9 x1y22",
     {"123|45| |678| |9| x|1|y|22",
      "1|2|3|4|5| |6|7|8| |9| x|1|y|2|2"}},
    {"a\nb\n\nc\r\n d",
     {"a|\n|b|\n\n|c|\r\n| d",
      "a|\n|b|\n|\n|c|\r|\n| d"}},
    {"end  \n\n  next",
     {"end|  \n\n| | next",
      "end|  |\n|\n| | next"}},
    {"  lead and trail  ",
     {" | lead| and| trail|  ",
      " | lead| and| trail|  "}},
    {"!?!\n\nNext (foo) [bar]{baz}",
     {"!?!\n\n|Next| (|foo|)| [|bar|]{|baz|}",
      "!?!|\n|\n|Next| (|foo|)| [|bar|]{|baz|}"}},
    {"a/b//c\n/ path/\n/x",
     {"a|/b|//|c|\n|/| path|/\n|/x",
      "a|/|b|//|c|\n|/| path|/|\n|/|x"}},
    {"na\xC3\xAFve \xC3\x9C""ber caf\xC3\xA9 \xC3\x89""a",
     {"na\xC3\xAFve| \xC3\x9C""ber| caf\xC3\xA9| \xC3\x89""a",
      "na|\xC3\xAF|ve| \xC3\x9C|ber| caf|\xC3\xA9| \xC3\x89|a"}},
    {"\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A mix\xE6\xBC\xA2\xE5\xAD\x97""A \xE4\xB8\xAD""A x",
     {"\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E|\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A| mix|\xE6\xBC\xA2\xE5\xAD\x97|A| |\xE4\xB8\xAD|A| x",
      "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A| mix|\xE6\xBC\xA2\xE5\xAD\x97|A| |\xE4\xB8\xAD|A| x"}},
    {"\xE4\xB8\xAD""Ab ab\xE4\xB8\xAD '\xE4\xB8\xADs",
     {"\xE4\xB8\xAD|Ab| ab|\xE4\xB8\xAD| '|\xE4\xB8\xAD|s",
      "\xE4\xB8\xAD|Ab| ab|\xE4\xB8\xAD| '|\xE4\xB8\xAD|s"}},
    {"\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4 \xEA\xB0\x80\xEB\x82\x98 x",
     {"\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4| \xEA\xB0\x80\xEB\x82\x98| x",
      "\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4| |\xEA\xB0\x80\xEB\x82\x98| x"}},
    {"x\xE3\x80\x81y\xE3\x80\x82z \xE3\x80\x82\xE3\x80\x8C""a\xE3\x80\x8D\xE2\x80\x9C""b\xE2\x80\x9D",
     {"x|\xE3\x80\x81y|\xE3\x80\x82z| \xE3\x80\x82\xE3\x80\x8C|a|\xE3\x80\x8D\xE2\x80\x9C|b|\xE2\x80\x9D",
      "x|\xE3\x80\x81|y|\xE3\x80\x82|z| |\xE3\x80\x82|\xE3\x80\x8C|a|\xE3\x80\x8D|\xE2\x80\x9C|b|\xE2\x80\x9D"}},
    {"\xC3\xA9 \xC3\xA9x \xC3\x81",
     {"\xC3\xA9| \xC3\xA9x| \xC3\x81",
      "\xC3\xA9| \xC3\xA9|x| \xC3\x81"}},
    {"$price \xE2\x82\xAC""9.99 \xC2\xB1""3%",
     {"$price| \xE2\x82\xAC|9|.|99| \xC2\xB1|3|%",
      "$|price| |\xE2\x82\xAC|9|.|9|9| \xC2\xB1|3|%"}},
    {"1\xE4\xB8\xAD""2 \xE2\x91\xA0 \xE2\x85\xA7x \xE3\x80\x87\xE4\xB8\x89",
     {"1|\xE4\xB8\xAD|2| |\xE2\x91\xA0| |\xE2\x85\xA7|x| |\xE3\x80\x87\xE4\xB8\x89",
      "1|\xE4\xB8\xAD|2| |\xE2\x91\xA0| |\xE2\x85\xA7|x| |\xE3\x80\x87|\xE4\xB8\x89"}},
    {"tab\tsep\t\tend\t",
     {"tab|\tsep|\t|\tend|\t",
      "tab|\tsep|\t|\tend|\t"}},
    {"\xE3\x80\x80\xE3\x80\x80x \xE3\x80\x80y\xE3\x80\x80\xE3\x80\x82",
     {"\xE3\x80\x80|\xE3\x80\x80x| |\xE3\x80\x80y|\xE3\x80\x80|\xE3\x80\x82",
      "\xE3\x80\x80|\xE3\x80\x80|x| |\xE3\x80\x80|y|\xE3\x80\x80\xE3\x80\x82"}},
    {"a\xC2\xA0\xE2\x80\x83""b\xE2\x80\x83\xE4\xB8\xAD\xE2\x80\x83 7",
     {"a|\xC2\xA0|\xE2\x80\x83""b|\xE2\x80\x83|\xE4\xB8\xAD|\xE2\x80\x83| |7",
      "a|\xC2\xA0|\xE2\x80\x83|b|\xE2\x80\x83\xE4\xB8\xAD\xE2\x80\x83| |7"}},
    {"\xD4\xB1\xD5\xA1\xD4\xB2 \xE1\x83\x90\xE1\x83\x91 \xEA\x9E\x8C\xEA\x9E\x8F ti\xE1\xBA\xBFng Vi\xE1\xBB\x87t",
     {"\xD4\xB1\xD5\xA1|\xD4\xB2| \xE1\x83\x90\xE1\x83\x91| \xEA\x9E\x8C\xEA\x9E\x8F| ti\xE1\xBA\xBFng| Vi\xE1\xBB\x87t",
      "\xD4\xB1|\xD5\xA1|\xD4\xB2| |\xE1\x83\x90\xE1\x83\x91| \xEA\x9E\x8C|\xEA\x9E\x8F| ti|\xE1\xBA\xBF|ng| Vi|\xE1\xBB\x87|t"}},
    {"\xE2\xBA\x80x \xE3\x80\x85 \xE2\xBA\x80\xE2\xBC\x80",
     {"\xE2\xBA\x80|x| |\xE3\x80\x85| \xE2\xBA\x80\xE2\xBC\x80",
      "\xE2\xBA\x80|x| |\xE3\x80\x85| |\xE2\xBA\x80\xE2\xBC\x80"}},
    // clang-format on
};

/* "default" by itself, and the words. */
static const char *const default_cases[][2] = {
    // clang-format off
    {"I'm sure we'll DON'T they'VE",
     "I|'|m| sure| we|'|ll| DON|'|T| they|'|VE"},
    {"HelloWorld camelCaseHTTPServer2 x",
     "HelloWorld| camelCaseHTTPServer|2| x"},
    {"12345 678  9 x1y22z1234567",
     "123|45| |678| | |9| x|1|y|22|z|123|456|7"},
    {"a\nb\n\nc\r\n d\t12",
     "a|\n|b|\n|\n|c|\r\n| d|\t|12"},
    {"end  \n\n  next",
     "end|  \n\n | next"},
    {"  lead and trail  ",
     " | lead| and| trail|  "},
    {"a  !? (foo) [bar]{baz}  ",
     "a|  |!?| |(|foo|)| |[|bar|]{|baz|}|  "},
    {"$price \xE2\x82\xAC""9.99 \xC2\xB1""3% +x <= `code` ^~|`",
     "$|price| \xE2\x82\xAC|9|.|99| \xC2\xB1|3|%| |+|x| |<=| `|code|`| |^~||`"},
    {"\xD9\xA1\xD9\xA2""123\xD9\xA4""567x 12\xD9\xA3""4567 \xC2\xBD""1",
     "\xD9\xA1\xD9\xA2|123|\xD9\xA4|567|x| |12\xD9\xA3|456|7| |\xC2\xBD""1"},
    {"na\xC3\xAFve \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A\xE3\x80\x81x\xE3\x80\x82 \xE2\x80\x9Cq\xE2\x80\x9D",
     "na\xC3\xAFve| \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A|\xE3\x80\x81|x|\xE3\x80\x82| |\xE2\x80\x9C|q|\xE2\x80\x9D"},
    {"e\xCC\x81 \xCC\x81 \xE2\x80\x8Bzero\xF0\x9F\x99\x82\xF0\x9F\x99\x82!",
     "e|\xCC\x81| \xCC\x81| \xE2\x80\x8B|zero|\xF0\x9F\x99\x82\xF0\x9F\x99\x82|!"},
    {"\xE3\x80\x80\xE3\x80\x80x \xC2\xA0y\xE2\x80\x83!",
     "\xE3\x80\x80|\xE3\x80\x80|x| |\xC2\xA0|y|\xE2\x80\x83|!"},
    // clang-format on
};

static void check_words(const char *family, const char *text, const char *want) {
    const struct sheaf__pre_info *info = sheaf__pre_find(family);
    const char *s = text;
    char words[512];
    size_t n = 0;
    cr_assert_not_null(info, "%s", family);
    for (size_t len = strlen(s), k; len; s += k, len -= k) {
        k = sheaf__pre_next(info->pre, s, len);
        cr_assert(k >= 1 && k <= len);
        if (n) words[n++] = '|';
        memcpy(words + n, s, k);
        n += k;
    }
    words[n] = 0;
    cr_expect_str_eq(words, want, "%s: \"%s\" gives \"%s\" for \"%s\"", family, text, words, want);
}

Test(pretokenizer, words) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t f = 0; f < 4; f++) check_words(families[f], cases[i].text, cases[i].words[f]);
    for (size_t i = 0; i < sizeof cased_cases / sizeof *cased_cases; i++)
        for (size_t f = 0; f < 3; f++)
            check_words(cased_families[f], cased_cases[i].text, cased_cases[i].words[f]);
    for (size_t i = 0; i < sizeof apart_cases / sizeof *apart_cases; i++)
        for (size_t f = 0; f < 2; f++)
            check_words(apart_families[f], apart_cases[i].text, apart_cases[i].words[f]);
    for (size_t i = 0; i < sizeof default_cases / sizeof *default_cases; i++)
        check_words("default", default_cases[i][0], default_cases[i][1]);
}

static bool is_among(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

/* As llama.cpp 0.7.0 has it for each name: a word that is a token is not merged, and files that do
 * not say have a bos before a text. */
Test(pretokenizer, flags_of_all_names) {
    static const char *const whole[] = {"llama-bpe", "llama3",  "llama-v3", "falcon3",
                                        "falcon-h1", "pixtral", "midm-2.0", "lfm2",
                                        "tekken",    "glm4",    "glm5"};
    enum { WITH_BOS = 9, N = sizeof whole / sizeof *whole };
    char *names = strdup(sheaf__pre_names());
    int n = 0;
    for (char *save, *name = strtok_r(names, ", ", &save); name;
         name = strtok_r(NULL, ", ", &save)) {
        const struct sheaf__pre_info *info = sheaf__pre_find(name);
        cr_assert_not_null(info, "%s is named, but not known", name);
        cr_expect_eq(info->whole_words, is_among(whole, N, name), "%s", name);
        cr_expect_eq(info->add_bos, is_among(whole, WITH_BOS, name), "%s", name);
        n++;
    }
    cr_expect_eq(n, 55);
    free(names);
}

Test(pretokenizer, names) {
    cr_expect_null(sheaf__pre_find("deepseek"));
    cr_expect_eq(sheaf__pre_find("default")->pre, SHEAF__PRE_DEFAULT);
    cr_expect_eq(sheaf__pre_find("llama3"), sheaf__pre_find("llama3"));
    cr_expect_eq(sheaf__pre_find("hunyuan")->pre, SHEAF__PRE_QWEN2);
    cr_expect_eq(sheaf__pre_find("hunyuan-dense")->pre, SHEAF__PRE_DEEPSEEK3);
    cr_expect_eq(sheaf__pre_find("exaone")->pre, SHEAF__PRE_SMOLLM);
    cr_expect_eq(sheaf__pre_find("exaone4")->pre, SHEAF__PRE_GPT2);
}

/* Any bytes are cut into words that cover them, and a byte that is not UTF-8 counts as a symbol. */
Test(pretokenizer, any_bytes) {
    cr_expect_eq(sheaf__pre_next(SHEAF__PRE_GPT2, " \xFF\xC3 x", 5), 3);
    cr_expect_eq(sheaf__pre_next(SHEAF__PRE_LLAMA3, "\xFFword", 5), 5);
    cr_expect_eq(sheaf__pre_next(SHEAF__PRE_QWEN2, "\0\0a", 3), 2);
    srand(7);
    for (int round = 0; round < 2000; round++) {
        char s[64];
        size_t len = 1 + (size_t)rand() % sizeof s;
        for (size_t i = 0; i < len; i++)
            s[i] = (char)(rand() % 3 ? rand() : " '\n\r1s"[rand() % 6]);
        for (int pre = 0; pre < SHEAF__PRE_COUNT; pre++) {
            /* at the very end of an allocation, so that a sanitizer sees reads beyond it */
            char *copy = malloc(len);
            memcpy(copy, s, len);
            for (size_t pos = 0; pos < len;) {
                size_t k = sheaf__pre_next((enum sheaf__pre)pre, copy + pos, len - pos);
                cr_assert(k >= 1 && k <= len - pos);
                pos += k;
            }
            free(copy);
        }
    }
}

Test(unicode, utf8_of_every_character) {
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char s[4];
        uint32_t back;
        size_t n = sheaf__utf8_put(cp, s);
        size_t used = sheaf__utf8_next(s, n, &back);
        bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;
        if (surrogate)
            cr_assert(used == 1 && back == SHEAF__CP_INVALID);
        else
            cr_assert(used == n && back == cp, "U+%04X", (unsigned)cp);
        for (size_t cut = 1; cut < n; cut++) {
            cr_assert_eq(sheaf__utf8_next(s, cut, &back), 1);
            cr_assert_eq(back, SHEAF__CP_INVALID);
            size_t waits = surrogate && cut == 2 ? 0 : cut;
            cr_assert_eq(sheaf__utf8_unfinished(s, cut), waits, "U+%04X", (unsigned)cp);
        }
        cr_assert_eq(sheaf__utf8_unfinished(s, n), 0);
    }
}

Test(unicode, utf8_malformed) {
    static const char *const bad[] = {"\x80",         "\xC0\x80",     "\xC1\xBF", "\xE0\x9F\xBF",
                                      "\xED\xA0\x80", "\xF0\x8F\xBF", "\xF4\x90", "\xF5\x80",
                                      "\xFF",         "\xE2(\xA1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t cp;
        cr_expect_eq(sheaf__utf8_next(bad[i], strlen(bad[i]), &cp), 1);
        cr_expect_eq(cp, SHEAF__CP_INVALID, "case %zu", i);
        cr_expect_eq(sheaf__utf8_unfinished(bad[i], strlen(bad[i])), 0, "case %zu", i);
    }
}

Test(unicode, classes) {
    static const struct {
        uint32_t cp;
        enum sheaf__char_class class;
    } known[] = {
        {0, SHEAF__CHAR_OTHER},        {'\t', SHEAF__CHAR_SPACE},
        {0x1C, SHEAF__CHAR_OTHER},     {' ', SHEAF__CHAR_SPACE},
        {'0', SHEAF__CHAR_NUMBER},     {'9', SHEAF__CHAR_NUMBER},
        {':', SHEAF__CHAR_OTHER},      {'A', SHEAF__CHAR_LETTER},
        {'_', SHEAF__CHAR_OTHER},      {0x85, SHEAF__CHAR_SPACE},
        {0xAA, SHEAF__CHAR_LETTER},    {0xB2, SHEAF__CHAR_NUMBER},
        {0x301, SHEAF__CHAR_OTHER},    {0x663, SHEAF__CHAR_NUMBER},
        {0x2028, SHEAF__CHAR_SPACE},   {0x200B, SHEAF__CHAR_OTHER},
        {0x2167, SHEAF__CHAR_NUMBER},  {0x3000, SHEAF__CHAR_SPACE},
        {0x4E00, SHEAF__CHAR_LETTER},  {0xAC00, SHEAF__CHAR_LETTER},
        {0xE000, SHEAF__CHAR_OTHER},   {0x1F600, SHEAF__CHAR_OTHER},
        {0x20000, SHEAF__CHAR_LETTER}, {0x10FFFF, SHEAF__CHAR_OTHER},
        {0x110000, SHEAF__CHAR_OTHER}, {SHEAF__CP_INVALID, SHEAF__CHAR_OTHER},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        cr_expect_eq(sheaf__char_class(known[i].cp), known[i].class, "U+%04X",
                     (unsigned)known[i].cp);
}
