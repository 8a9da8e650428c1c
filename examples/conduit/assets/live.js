// Inserts new comments and announces new articles. Content from users is inserted as text, never as
// HTML.
'use strict';

const comments = document.getElementById('comments');
if (comments) {
  new EventSource(comments.dataset.live).addEventListener('comment', event => {
    const comment = JSON.parse(event.data);
    // An event may arrive twice.
    if (comments.querySelector(`[data-id="${Number(comment.id)}"]`)) return;
    const item = document.createElement('li');
    item.dataset.id = comment.id;
    const author = document.createElement('b');
    author.textContent = comment.author.username;
    const text = document.createElement('span');
    text.className = 'text';
    text.textContent = comment.body;
    item.append(author, ' ', text);
    comments.prepend(item);
  });
}

const news = document.getElementById('news');
if (news) {
  new EventSource(news.dataset.live).addEventListener('article', () => { news.hidden = false; });
}
