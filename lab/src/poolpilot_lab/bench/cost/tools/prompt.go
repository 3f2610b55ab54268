package main

import (
	"math/rand"
	"net"
	"strconv"
	"sync"
)

// prompt says how requests look.
type prompt struct {
	// Bytes of the whole body, at least about 150.
	Bytes  int  `json:"bytes"`
	Stream bool `json:"stream"`
	// Models are chosen at random, all alike.
	Models []string `json:"models"`
	// Of Prefixes common beginnings, one is the first PrefixShare of each prompt; 0 means that every prompt is new.
	Prefixes    int     `json:"prefixes"`
	PrefixShare float64 `json:"prefix_share"`
}

const textBytes = 24 << 20

// text is one long run of words; prompts are cut from it at random places.
var text = sync.OnceValue(func() []byte {
	random := rand.New(rand.NewSource(1))
	words := make([]byte, 0, textBytes+16)
	for len(words) < textBytes {
		for letters := 2 + random.Intn(8); letters > 0; letters-- {
			words = append(words, byte('a'+random.Intn(26)))
		}
		words = append(words, ' ')
	}
	return words[:textBytes]
})

// writer makes the requests of one client, without copying prompts.
type writer struct {
	prompt prompt
	random *rand.Rand
	heads  [][]byte
	head   []byte
}

var end = []byte(`"}]}`)

func newWriter(given prompt, random *rand.Rand) *writer {
	made := &writer{prompt: given, random: random}
	for _, model := range given.Models {
		head := `{"model":` + strconv.Quote(model)
		if given.Stream {
			head += `,"stream":true,"max_tokens":200`
		} else {
			head += `,"max_tokens":40`
		}
		made.heads = append(made.heads, []byte(head+`,"messages":[{"role":"user","content":"`))
	}
	text()
	return made
}

// next is one request, to be written at once.
func (w *writer) next(host string) net.Buffers {
	opening := w.heads[w.random.Intn(len(w.heads))]
	length := max(w.prompt.Bytes-len(opening)-len(end), 16)
	w.head = append(w.head[:0], "POST /v1/chat/completions HTTP/1.1\r\nhost: "...)
	w.head = append(w.head, host...)
	w.head = append(w.head, "\r\nuser-agent: bench\r\ncontent-type: application/json\r\ncontent-length: "...)
	w.head = strconv.AppendInt(w.head, int64(len(opening)+length+len(end)), 10)
	w.head = append(w.head, "\r\n\r\n"...)
	w.head = append(w.head, opening...)
	pieces := make(net.Buffers, 0, 4)
	pieces = append(pieces, w.head)
	if w.prompt.Prefixes > 0 {
		common := int(w.prompt.PrefixShare * float64(length))
		// Beginnings lie apart in the last third, where no new prompt starts.
		step := (textBytes / 4) / w.prompt.Prefixes
		place := textBytes*2/3 + w.random.Intn(w.prompt.Prefixes)*step
		pieces = append(pieces, text()[place:place+common])
		length -= common
	}
	place := w.random.Intn(textBytes*2/3 - 1)
	pieces = append(pieces, text()[place:place+length])
	return append(pieces, end)
}
